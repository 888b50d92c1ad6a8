#define _GNU_SOURCE
#define FAIRMILE_COUPLE_IMPLEMENTATION
#include "fairmile_couple.h"
