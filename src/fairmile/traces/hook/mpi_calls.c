/* Times the MPI calls of a program that was not changed: preloaded, it stands before the MPI library.

   It needs no header of MPI, so one build serves each MPI library: the arguments are numbers and addresses, which the
   calling conventions of Linux on x86-64 and ARM hand over in whole registers and slots, and are passed on as they
   came. Calls of C, of Fortran's mpif.h and mpi, and of mpi_f08 are seen. Calls that only ask (MPI_Test, MPI_Iprobe)
   and those that only begin something (MPI_Iallreduce) are not: they end before anything was waited for. */
#define _GNU_SOURCE
#define FAIRMILE_METER_IMPLEMENTATION
#include "fairmile_meter.h"

#include <dlfcn.h>
#include <link.h>

static __thread int depth; /* a library that carries out one call by others counts once */

static int look_in(struct dl_phdr_info *object, size_t size, void *wanted) {
  void **found = (void **)wanted, *library;
  const char *base = strrchr(object->dlpi_name, '/');
  (void)size;
  if (strncmp(base ? base + 1 : object->dlpi_name, "libmpi", 6)) return 0;
  library = dlopen(object->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return 0;
  *found = dlsym(library, (const char *)*found);
  dlclose(library);
  return 1;
}

/* Return the library's own function, NULL where there is none; an extension of Python may have loaded it for itself. */
static void *sought(const char *name, const char *profiled) {
  void *function = dlsym(RTLD_NEXT, name), *found = (void *)(intptr_t)profiled;
  return function || !dl_iterate_phdr(look_in, &found) ? function : found;
}

static void *own(const char *name, const char *profiled) {
  void *function = sought(name, profiled);
  if (!function) {
    fprintf(stderr, "fairmile: there is no %s in this MPI library\n", name);
    abort();
  }
  return function;
}

/* What lies between the calls is the program's own work; in Python, others tell what that is. */
static int32_t between(void) {
  static int32_t timer = -1;
  if (timer < 0) {
    char path[512];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    timer = strstr(path, "/python") ? 0 : fairmile_timer("outside MPI");
  }
  return timer;
}

static void begin(int32_t *timer, const char *name) {
  static __thread int follows;
  if (depth++) return;
  if (follows) fairmile_stop(between());
  follows = 1;
  if (!*timer) *timer = fairmile_timer(name);
  fairmile_start(*timer);
}

static void end(int32_t timer, int64_t bytes) {
  if (--depth) return;
  if (timer > 0 && fmm_on()) fmm_stop_timer(timer, bytes);
  fairmile_start(between());
}

/* What a call that was made moves: so many elements of a type, for each rank of a communicator where that is told; -1
   where it cannot be known. In Fortran the arguments are addresses of whole numbers. */
static int64_t moved(int is_fortran, long count, long type, long communicator) {
  static int (*type_size)(long, int *), (*comm_size)(long, int *);
  static void (*type_size_f)(int *, int *, int *), (*comm_size_f)(int *, int *, int *);
  int size = -1, ranks = 1, code = 0;
  int64_t elements = is_fortran ? *(int *)count : (int)count;
  if (!elements) return 0; /* its type may be none */
  if (is_fortran) {
    if (!type_size_f) type_size_f = (void (*)(int *, int *, int *))sought("pmpi_type_size_", "pmpi_type_size_");
    if (!comm_size_f) comm_size_f = (void (*)(int *, int *, int *))sought("pmpi_comm_size_", "pmpi_comm_size_");
    if (!type_size_f || !comm_size_f) return -1;
    type_size_f((int *)type, &size, &code);
    if (!code && communicator) comm_size_f((int *)communicator, &ranks, &code);
  } else {
    if (!type_size) type_size = (int (*)(long, int *))sought("PMPI_Type_size", "PMPI_Type_size");
    if (!comm_size) comm_size = (int (*)(long, int *))sought("PMPI_Comm_size", "PMPI_Comm_size");
    if (!type_size || !comm_size) return -1;
    code = type_size(type, &size);
    if (!code && communicator) code = comm_size(communicator, &ranks);
  }
  return code || size < 0 || elements < 0 ? -1 : elements * size * ranks;
}

/* Which arguments of a call tell what it moves, on every rank: those of a gather depend on which rank is the root. */
#define OF(count, type) moved(is_fortran, count, type, 0)
#define OF_EACH(count, type, communicator) moved(is_fortran, count, type, communicator)
#define UNKNOWN ((void)is_fortran, (int64_t)-1)

#define A0
#define A1 long a
#define A2 A1, long b
#define A3 A2, long c
#define A4 A3, long d
#define A5 A4, long e
#define A6 A5, long f
#define A7 A6, long g
#define A8 A7, long h
#define A9 A8, long i
#define A10 A9, long j
#define A11 A10, long k
#define A12 A11, long l
#define A13 A12, long m
#define P0
#define P1 a
#define P2 P1, b
#define P3 P2, c
#define P4 P3, d
#define P5 P4, e
#define P6 P5, f
#define P7 P6, g
#define P8 P7, h
#define P9 P8, i
#define P10 P9, j
#define P11 P10, k
#define P12 P11, l
#define P13 P12, m
#define SHOWN __attribute__((visibility("default")))

#define IN_C(name, count, bytes)                                                \
  SHOWN int MPI_##name(A##count) {                                              \
    static int (*next)(A##count);                                               \
    static int32_t timer;                                                       \
    const int is_fortran = 0;                                                   \
    int code;                                                                   \
    if (!next) next = (int (*)(A##count))own("MPI_" #name, "PMPI_" #name);      \
    begin(&timer, "MPI_" #name);                                                \
    code = next(P##count);                                                      \
    end(timer, code ? -1 : (bytes));                                            \
    return code;                                                                \
  }

#define IN_FORTRAN(symbol, profiled, name, count, bytes)                        \
  SHOWN void symbol(A##count) {                                                 \
    static void (*next)(A##count);                                              \
    static int32_t timer;                                                       \
    const int is_fortran = 1;                                                   \
    if (!next) next = (void (*)(A##count))own(#symbol, #profiled);              \
    begin(&timer, "MPI_" #name);                                                \
    next(P##count);                                                             \
    end(timer, bytes);                                                          \
  }

/* Fortran hands over the code of the error as one argument more. */
#define CALL(name, lower, count, more, bytes)                                   \
  IN_C(name, count, bytes)                                                      \
  IN_FORTRAN(mpi_##lower##_, pmpi_##lower##_, name, more, bytes)                \
  IN_FORTRAN(mpi_##lower##_f08_, pmpi_##lower##_f08_, name, more, bytes)

CALL(Finalize, finalize, 0, 1, UNKNOWN)
CALL(Send, send, 6, 7, OF(b, c))
CALL(Bsend, bsend, 6, 7, OF(b, c))
CALL(Ssend, ssend, 6, 7, OF(b, c))
CALL(Rsend, rsend, 6, 7, OF(b, c))
CALL(Recv, recv, 7, 8, OF(b, c))
CALL(Isend, isend, 7, 8, OF(b, c))
CALL(Irecv, irecv, 7, 8, OF(b, c))
CALL(Sendrecv, sendrecv, 12, 13, OF(b, c))
CALL(Sendrecv_replace, sendrecv_replace, 9, 10, OF(b, c))
CALL(Probe, probe, 4, 5, UNKNOWN)
CALL(Wait, wait, 2, 3, UNKNOWN)
CALL(Waitall, waitall, 3, 4, UNKNOWN)
CALL(Waitany, waitany, 4, 5, UNKNOWN)
CALL(Waitsome, waitsome, 5, 6, UNKNOWN)
CALL(Barrier, barrier, 1, 2, UNKNOWN)
CALL(Bcast, bcast, 5, 6, OF(b, c))
CALL(Gather, gather, 8, 9, UNKNOWN)
CALL(Gatherv, gatherv, 9, 10, UNKNOWN)
CALL(Scatter, scatter, 8, 9, UNKNOWN)
CALL(Scatterv, scatterv, 9, 10, UNKNOWN)
CALL(Allgather, allgather, 7, 8, OF_EACH(e, f, g))
CALL(Allgatherv, allgatherv, 8, 9, UNKNOWN)
CALL(Alltoall, alltoall, 7, 8, OF_EACH(e, f, g))
CALL(Alltoallv, alltoallv, 9, 10, UNKNOWN)
CALL(Alltoallw, alltoallw, 9, 10, UNKNOWN)
CALL(Reduce, reduce, 7, 8, OF(c, d))
CALL(Allreduce, allreduce, 6, 7, OF(c, d))
CALL(Reduce_scatter, reduce_scatter, 6, 7, UNKNOWN)
CALL(Reduce_scatter_block, reduce_scatter_block, 6, 7, OF_EACH(c, d, f))
CALL(Scan, scan, 6, 7, OF(c, d))
CALL(Exscan, exscan, 6, 7, OF(c, d))
CALL(Win_fence, win_fence, 2, 3, UNKNOWN)
CALL(File_read, file_read, 5, 6, UNKNOWN)
CALL(File_read_all, file_read_all, 5, 6, UNKNOWN)
CALL(File_read_at, file_read_at, 6, 7, UNKNOWN)
CALL(File_read_at_all, file_read_at_all, 6, 7, UNKNOWN)
CALL(File_write, file_write, 5, 6, UNKNOWN)
CALL(File_write_all, file_write_all, 5, 6, UNKNOWN)
CALL(File_write_at, file_write_at, 6, 7, UNKNOWN)
CALL(File_write_at_all, file_write_at_all, 6, 7, UNKNOWN)
