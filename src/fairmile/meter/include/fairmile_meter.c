/* The code of fairmile_meter.h as a file of its own, for programs that have no C file to put it into. */
#define FAIRMILE_METER_IMPLEMENTATION
#include "fairmile_meter.h"
