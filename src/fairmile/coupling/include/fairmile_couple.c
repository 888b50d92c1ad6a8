#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define FAIRMILE_COUPLE_IMPLEMENTATION
#ifdef FAIRMILE_COUPLE_MPI /* mpicc -DFAIRMILE_COUPLE_MPI: a model in ranks of the same job */
#undef FAIRMILE_COUPLE_MPI
#include <mpi.h>
#endif
#include "fairmile_couple.h"
