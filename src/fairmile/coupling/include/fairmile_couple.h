/* A running simulation asks a model: fields out, fields in, at every step.
 *
 *     #define FAIRMILE_COUPLE_IMPLEMENTATION   // in one source file of the program
 *     #include "fairmile_couple.h"
 *
 *     int64_t shape[] = {nz, nx};
 *     fairmile_couple_rank(rank, size);                                        // only if there are several ranks
 *     fairmile_couple_out("temperature", t, FAIRMILE_DOUBLE, 2, shape);        // once
 *     fairmile_couple_in("heating", q, FAIRMILE_DOUBLE, 2, shape);             // once
 *     for (...) {
 *       if (fairmile_couple_step() == FAIRMILE_PHYSICS) own_physics(t, q);     // in the loop
 *     }
 *     fairmile_couple_end();
 *
 * The environment decides what answers, so that the same program runs with and without a model:
 *
 *     FAIRMILE_COUPLE            path of the model's socket, or of an ONNX file that this process computes itself, or
 *                                `mpi`: the model is other ranks of the same MPI job; empty or unset: off, each step
 *                                answers FAIRMILE_PHYSICS
 *     FAIRMILE_COUPLE_RUNTIME    path of ONNX Runtime's library, where the system does not find libonnxruntime.so
 *     FAIRMILE_COUPLE_THREADS    threads that compute an ONNX file (1)
 *     FAIRMILE_COUPLE_LAG        k: take the answer to step n-k at step n (0)
 *     FAIRMILE_COUPLE_EVERY      couple each n-th step (1)
 *     FAIRMILE_COUPLE_TIMEOUT_S  longest time to wait for an answer (60)
 *     FAIRMILE_COUPLE_START_S    longest time to wait for the model to be ready (300)
 *     FAIRMILE_COUPLE_FALLBACK   if no answer comes: stop (end the program, exit code 3), hold (keep the last answer) or
 *                                physics (stop)
 *     FAIRMILE_COUPLE_FINITE     1: an answer with NaN or infinity counts as none (0)
 *
 * With a model in ranks of the same job, MPI_COMM_WORLD has ranks that are none of the solver's. Include mpi.h before this
 * header, and after MPI_Init take fairmile_couple_comm() in place of MPI_COMM_WORLD, which also tells rank and size. It is
 * MPI_COMM_WORLD itself where no model is in the job.
 *
 * Where fairmile_meter.h is included before, a recorded run also shows what each step sends, receives and waits for.
 *
 * The inputs and outputs of an ONNX file are the fields of their names, with the shapes of the fields.
 *
 * One process calls from one thread. No framework; to link, -ldl -pthread on older systems. POSIX only. C99 and C++.
 */
#ifndef FAIRMILE_COUPLE_H
#define FAIRMILE_COUPLE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { FAIRMILE_FLOAT = 0, FAIRMILE_DOUBLE = 1, FAIRMILE_INT32 = 2, FAIRMILE_INT64 = 3 };

/* What fairmile_couple_step answers. */
enum {
  FAIRMILE_ANSWERED = 0, /* the fields hold the model's answer */
  FAIRMILE_HELD = 1,     /* no answer came in time, or none is due: the fields hold the last one */
  FAIRMILE_PHYSICS = 2,  /* no model, or no answer yet: compute it yourself */
  FAIRMILE_STOP = 3      /* the model asks the simulation to end; the fields are unchanged */
};

/* The number of this process among those of the program, before the first step. */
void fairmile_couple_rank(int rank, int size);

/* A field that the model reads or answers. `values` must stay where it is. Label: up to 64 of A-Z a-z 0-9 _ . - */
void fairmile_couple_out(const char *label, const void *values, int kind, int dims, const int64_t *shape);
void fairmile_couple_in(const char *label, void *values, int kind, int dims, const int64_t *shape);

/* The same for arrays in Fortran's order: the first index runs fastest. */
void fairmile_couple_field(const char *label, void *values, int kind, int dims, const int64_t *shape, int is_in,
                           int is_fortran);

/* Send the fields that go out, receive those that come in. */
int fairmile_couple_step(void);

#ifdef MPI_VERSION
/* The solver's part of MPI_COMM_WORLD. All ranks call it, after MPI_Init and before the first step. */
MPI_Comm fairmile_couple_comm(void);
#endif

/* Tell the model that the simulation has ended. At exit this happens by itself. */
void fairmile_couple_end(void);

#ifdef __cplusplus
}
#endif
#endif

#ifdef FAIRMILE_COUPLE_IMPLEMENTATION
#ifndef FAIRMILE_COUPLE_IMPLEMENTED
#define FAIRMILE_COUPLE_IMPLEMENTED

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifdef MPI_VERSION
#define FAIRMILE_COUPLE_MPI 1
#else
#define FAIRMILE_COUPLE_MPI 0
#endif

#ifndef FAIRMILE_METER_H
enum { FAIRMILE_PUT = 0, FAIRMILE_GET = 1 };
#endif

#define FAIRMILE_COUPLE_MOST_FIELDS 64
#define FAIRMILE_COUPLE_MOST_DIMS 8

typedef struct {
  char label[65];
  void *values;
  int kind, dims, is_in, is_fortran;
  int64_t shape[FAIRMILE_COUPLE_MOST_DIMS], bytes, offset;
} fairmile_couple_a_field;

typedef struct {
  int64_t kind, step; /* kind: 1 a step, 2 an answer, 3 the end, 4 please stop, 5 ready (step: 1 if who looks for words
                         keeps no other process from a core), 6 the model ends, 7 fields are described in so many bytes */
} fairmile_couple_note;

/* What both sides read and write before the first slot of the shared memory, each word in a cache line of its own. Who
   waits looks at its word for a while, and sleeps at the socket if nothing comes: it says so before it looks once
   more, and the other side then sends a note. */
enum { FAIRMILE_COUPLE_ASKED = 0, FAIRMILE_COUPLE_DONE, FAIRMILE_COUPLE_STOPS, FAIRMILE_COUPLE_MODEL_SLEEPS,
       FAIRMILE_COUPLE_SOLVER_SLEEPS, FAIRMILE_COUPLE_WORDS };
#define FAIRMILE_COUPLE_LINE 64
#define FAIRMILE_COUPLE_LOOK_S 500e-6 /* who waits longer hardly feels what a sleep costs, some ten microseconds */

static struct {
  int state; /* 0 not begun, 1 coupled, 2 without a model, 3 ended */
  int rank, size, count, socket, holds, is_stopping, is_late, is_mpi, is_checked, is_refused;
  int64_t lag, every, slots, slot_bytes, step, coupled, answered;
  double timeout_s, start_s, look_s;
  const char *fallback;
  char *memory;
  fairmile_couple_a_field fields[FAIRMILE_COUPLE_MOST_FIELDS];
} fairmile_coupled = {0, 0, 1, 0, -1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, -1, 0, 0, 0, NULL, NULL, {{{0}, NULL, 0, 0, 0, 0, {0}, 0, 0}}};

/* End the program: other ranks and the model may be waiting for this one. */
static void fairmile_couple_quit(int code) {
#if FAIRMILE_COUPLE_MPI
  if (fairmile_coupled.is_mpi) MPI_Abort(MPI_COMM_WORLD, code);
#endif
  exit(code);
}

static void fairmile_couple_fail(const char *what, const char *which) {
  fprintf(stderr, "fairmile_couple: rank %d, step %lld: %s%s\n", fairmile_coupled.rank,
          (long long)fairmile_coupled.step, what, which);
  fairmile_couple_quit(3);
}

static double fairmile_couple_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double fairmile_couple_number(const char *name, double usual, double least) {
  const char *text = getenv(name);
  char *end;
  double value;
  if (!text || !*text) return usual;
  value = strtod(text, &end);
  if (*end || !(value >= least) || value > 1e9) {
    fprintf(stderr, "fairmile_couple: %s is '%s': expected a number of at least %g\n", name, text, least);
    fairmile_couple_quit(2);
  }
  return value;
}

void fairmile_couple_rank(int rank, int size) {
  fairmile_coupled.rank = rank;
  fairmile_coupled.size = size;
}

void fairmile_couple_field(const char *label, void *values, int kind, int dims, const int64_t *shape, int is_in,
                           int is_fortran) {
  static const int bytes[] = {4, 8, 4, 8};
  fairmile_couple_a_field *field = &fairmile_coupled.fields[fairmile_coupled.count];
  size_t length = strlen(label);
  int at;
  if (fairmile_coupled.state) fairmile_couple_fail("declare fields before the first step: ", label);
  if (fairmile_coupled.count == FAIRMILE_COUPLE_MOST_FIELDS) fairmile_couple_fail("too many fields: ", label);
  if (kind < 0 || kind > 3 || dims < 0 || dims > FAIRMILE_COUPLE_MOST_DIMS)
    fairmile_couple_fail("unknown kind, or more than 8 dimensions: ", label);
  if (!length || length > 64 ||
      strspn(label, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") != length)
    fairmile_couple_fail("a label has 1 to 64 of A-Z a-z 0-9 _ . -: ", label);
  for (at = 0; at < fairmile_coupled.count; at++)
    if (fairmile_coupled.fields[at].is_in == is_in && !strcmp(fairmile_coupled.fields[at].label, label))
      fairmile_couple_fail("declared twice: ", label);
  memcpy(field->label, label, length + 1);
  field->values = values;
  field->kind = kind;
  field->dims = dims;
  field->is_in = is_in;
  field->is_fortran = is_fortran;
  field->bytes = bytes[kind];
  for (at = 0; at < dims; at++) {
    if (shape[at] < 0) fairmile_couple_fail("negative size: ", label);
    field->shape[at] = shape[at];
    field->bytes *= shape[at];
  }
  fairmile_coupled.count++;
}

void fairmile_couple_out(const char *label, const void *values, int kind, int dims, const int64_t *shape) {
  fairmile_couple_field(label, (void *)(intptr_t)values, kind, dims, shape, 0, 0);
}

void fairmile_couple_in(const char *label, void *values, int kind, int dims, const int64_t *shape) {
  fairmile_couple_field(label, values, kind, dims, shape, 1, 0);
}

/* Have a file of so many bytes in memory. What is reserved now is not missed later, when a write to it would end the
   program: a full file system takes a file of any size that nothing is written to. */
static int fairmile_couple_map(int file, int64_t bytes) {
#ifdef __linux__
  int failure;
  do failure = posix_fallocate(file, 0, (off_t)bytes);
  while (failure == EINTR);
  errno = failure;
  if (failure) return 0;
#else
  if (ftruncate(file, (off_t)bytes)) return 0;
#endif
  fairmile_coupled.memory = (char *)mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return fairmile_coupled.memory != (char *)MAP_FAILED;
}

/* Shared memory without a name, or whose name is removed at once: nobody else can open it, and nothing is left of it.
   Returns its file, or -1. */
static int fairmile_couple_memory(int64_t bytes) {
  const char *folders[] = {"/dev/shm", NULL, "/tmp"};
  char path[512];
  int at, file, why;
#ifdef SYS_memfd_create
  file = (int)syscall(SYS_memfd_create, "fairmile-couple", 1); /* not inherited */
  if (file >= 0 && fairmile_couple_map(file, bytes)) return file;
  if (file >= 0) close(file);
#endif
  folders[1] = getenv("TMPDIR");
  for (at = 0; at < 3; at++) {
    if (!folders[at] || strlen(folders[at]) > 400) continue;
    snprintf(path, sizeof path, "%s/fairmile-couple-XXXXXX", folders[at]);
    file = mkstemp(path);
    if (file < 0) continue;
    unlink(path);
    if (fairmile_couple_map(file, bytes)) return file;
    why = errno;
    close(file);
    errno = why;
  }
  return -1;
}

static int64_t *fairmile_couple_word(int which) {
  return (int64_t *)(void *)(fairmile_coupled.memory + which * FAIRMILE_COUPLE_LINE);
}

static char *fairmile_couple_slot(int64_t step) {
  return fairmile_coupled.memory + FAIRMILE_COUPLE_WORDS * FAIRMILE_COUPLE_LINE +
         step % fairmile_coupled.slots * fairmile_coupled.slot_bytes;
}

/* Look for the answer to a step; 1 if it is there. */
static int fairmile_couple_look(int64_t step) {
  int64_t done = __atomic_load_n(fairmile_couple_word(FAIRMILE_COUPLE_DONE), __ATOMIC_ACQUIRE) - 1;
  if (done > fairmile_coupled.answered) fairmile_coupled.answered = done;
  if (fairmile_coupled.answered < step) return 0;
  fairmile_coupled.is_stopping = (int)*fairmile_couple_word(FAIRMILE_COUPLE_STOPS);
  return 1;
}

/* Send all bytes, and a file with the first; 0 if the other side is gone. */
static int fairmile_couple_send(const char *bytes, size_t count, int file) {
  while (count) {
    struct iovec part;
    struct msghdr message;
    union {
      struct cmsghdr head;
      char room[CMSG_SPACE(sizeof(int))];
    } with;
    ssize_t sent;
    memset(&message, 0, sizeof message);
    part.iov_base = (void *)(intptr_t)bytes;
    part.iov_len = count;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (file >= 0) {
      struct cmsghdr *head;
      memset(&with, 0, sizeof with);
      message.msg_control = with.room;
      message.msg_controllen = sizeof with.room;
      head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(sizeof(int));
      memcpy(CMSG_DATA(head), &file, sizeof(int));
    }
#ifdef MSG_NOSIGNAL
    sent = sendmsg(fairmile_coupled.socket, &message, MSG_NOSIGNAL);
#else
    sent = sendmsg(fairmile_coupled.socket, &message, 0);
#endif
    if (sent < 0) {
      if (errno == EINTR) continue;
      return 0;
    }
    bytes += sent;
    count -= (size_t)sent;
    file = -1;
  }
  return 1;
}

/* Receive a note until a time; 1: here it is, 0: none in time, -1: the other side is gone. */
static int fairmile_couple_receive(fairmile_couple_note *note, double until) {
  static char bytes[sizeof(fairmile_couple_note)];
  static size_t have = 0;
  while (have < sizeof bytes) {
    struct pollfd wait;
    double left = until - fairmile_couple_now();
    ssize_t got;
    int ready;
    wait.fd = fairmile_coupled.socket;
    wait.events = POLLIN;
    ready = poll(&wait, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return 0;
    got = recv(fairmile_coupled.socket, bytes + have, sizeof bytes - have, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return -1;
    have += (size_t)got;
  }
  memcpy(note, bytes, sizeof bytes);
  have = 0;
  return 1;
}

static void fairmile_couple_lose(const char *why) {
  fprintf(stderr, "fairmile_couple: rank %d, step %lld: %s; fallback: %s\n", fairmile_coupled.rank,
          (long long)fairmile_coupled.step, why, fairmile_coupled.fallback);
  if (!strcmp(fairmile_coupled.fallback, "stop")) fairmile_couple_quit(3);
}

static void fairmile_couple_leave(void) {
  if (fairmile_coupled.socket >= 0) close(fairmile_coupled.socket);
  fairmile_coupled.socket = -1;
}

/* Note for the trace when the exchange of one way begins (0), can move its bytes (1) and is over (2). */
static void fairmile_couple_trace(int way, int moment, int64_t step) {
#ifdef FAIRMILE_METER_H
  static int32_t exchanges[2] = {-1, -1};
  int64_t bytes = 0;
  int at;
  if (exchanges[way] < 0) {
    char key[40];
    if (!getenv("FAIRMILE_COMPONENT")) fairmile_component("solver");
    snprintf(key, sizeof key, "%s/%d", way == FAIRMILE_GET ? "answers" : "fields", fairmile_coupled.rank);
    exchanges[way] = fairmile_exchange(way, key, "model");
  }
  if (moment == 0) {
    fairmile_exchange_begin(exchanges[way]);
  } else if (moment == 1) {
    fairmile_exchange_ready(exchanges[way]);
  } else {
    for (at = 0; at < fairmile_coupled.count; at++)
      if (fairmile_coupled.fields[at].is_in == way) bytes += fairmile_coupled.fields[at].bytes;
    fairmile_exchange_end(exchanges[way], step, bytes);
  }
#else
  (void)way;
  (void)moment;
  (void)step;
#endif
}

/* Tell whether an answer to a field is finite, where the simulation wants to know; if not, that is said once until one is.
   Bits are looked at, since compilers may be told that no value is ever infinite. */
static int fairmile_couple_is_good(const fairmile_couple_a_field *field, const char *values, int kind, int64_t count) {
  const uint64_t most = (uint64_t)0x7ff << 52;
  const uint32_t most_single = (uint32_t)0xff << 23;
  int64_t at, others = 0;
  char why[128];
  if (!fairmile_coupled.is_checked) return 1;
  for (at = 0; kind == FAIRMILE_DOUBLE && at < count; at++) {
    uint64_t bits;
    memcpy(&bits, values + 8 * at, 8);
    others += (bits & most) == most;
  }
  for (at = 0; kind == FAIRMILE_FLOAT && at < count; at++) {
    uint32_t bits;
    memcpy(&bits, values + 4 * at, 4);
    others += (bits & most_single) == most_single;
  }
  if (others && !fairmile_coupled.is_refused) {
    snprintf(why, sizeof why, "%lld values of %s are not finite", (long long)others, field->label);
    fairmile_couple_lose(why);
  }
  fairmile_coupled.is_refused = others > 0;
  return !others;
}

static int fairmile_couple_without(void) {
  if (fairmile_coupled.fallback && !strcmp(fairmile_coupled.fallback, "hold") && fairmile_coupled.holds)
    return FAIRMILE_HELD;
  return FAIRMILE_PHYSICS;
}

/* An ONNX file in this process: ONNX Runtime's C interface, found at run time. Its table of functions only grows at the
   end; these are places in its version 1, which every release since 1.0 has. */
enum {
  FAIRMILE_ORT_ERROR_MESSAGE = 2,
  FAIRMILE_ORT_CREATE_ENV = 3,
  FAIRMILE_ORT_CREATE_SESSION = 7,
  FAIRMILE_ORT_RUN = 9,
  FAIRMILE_ORT_CREATE_OPTIONS = 10,
  FAIRMILE_ORT_SET_THREADS = 24,
  FAIRMILE_ORT_INPUT_COUNT = 30,
  FAIRMILE_ORT_OUTPUT_COUNT = 31,
  FAIRMILE_ORT_INPUT_TYPE = 33,
  FAIRMILE_ORT_OUTPUT_TYPE = 34,
  FAIRMILE_ORT_INPUT_NAME = 36,
  FAIRMILE_ORT_OUTPUT_NAME = 37,
  FAIRMILE_ORT_CREATE_RUN_OPTIONS = 39,
  FAIRMILE_ORT_SET_TERMINATE = 46,
  FAIRMILE_ORT_UNSET_TERMINATE = 47,
  FAIRMILE_ORT_CREATE_TENSOR = 49,
  FAIRMILE_ORT_TENSOR_INFO = 55,
  FAIRMILE_ORT_ELEMENT_TYPE = 60,
  FAIRMILE_ORT_CPU_MEMORY = 69,
  FAIRMILE_ORT_ALLOCATOR = 78,
  FAIRMILE_ORT_RELEASE_STATUS = 93,
  FAIRMILE_ORT_RELEASE_TYPE = 98,
  FAIRMILE_ORT_FUNCTIONS = 102
};

typedef void (*fairmile_ort_function)(void);
typedef struct {
  fairmile_ort_function at[FAIRMILE_ORT_FUNCTIONS];
} fairmile_ort_table;
typedef struct {
  const fairmile_ort_table *(*table)(uint32_t version);
  const char *(*version)(void);
} fairmile_ort_base;
typedef void *fairmile_ort; /* whatever ONNX Runtime made; a status that is not NULL is an error */
typedef const char *fairmile_ort_text;

/* A function of the table by its place and the types of its arguments; it returns a status. */
#define FAIRMILE_ORT(place, types) ((fairmile_ort(*) types)fairmile_coupled_model.ort->at[place])

/* What the model reads or gives: the field of that name, and a buffer if the model has it in another form. */
typedef struct {
  int field, kind; /* the kind of the model's values, which may differ from that of the field */
  int64_t count;
  char *buffer;         /* NULL: the model reads the program's own array */
  fairmile_ort *values; /* one for each slot; inputs have one */
} fairmile_couple_tensor;

static struct {
  const fairmile_ort_table *ort;
  fairmile_ort session, options;
  size_t inputs, outputs;
  fairmile_couple_tensor tensors[2][FAIRMILE_COUPLE_MOST_FIELDS]; /* inputs, outputs */
  const char *names[2][FAIRMILE_COUPLE_MOST_FIELDS];
  int64_t *computed; /* the step whose answer each slot holds; -1: none */
  pthread_mutex_t lock;
  double until; /* 0: nothing is computed at this moment */
  int is_stopped;
} fairmile_coupled_model = {NULL, NULL, NULL, 0,   0, {{{0, 0, 0, NULL, NULL}}}, {{NULL}},
                            NULL, PTHREAD_MUTEX_INITIALIZER, 0, 0};

/* Tell whether ONNX Runtime refused, and why. */
static int fairmile_couple_refused(fairmile_ort status, char *why, size_t room) {
  if (!status) return 0;
  snprintf(why, room, "%s",
           ((fairmile_ort_text(*)(fairmile_ort))fairmile_coupled_model.ort->at[FAIRMILE_ORT_ERROR_MESSAGE])(status));
  ((void (*)(fairmile_ort))fairmile_coupled_model.ort->at[FAIRMILE_ORT_RELEASE_STATUS])(status);
  return 1;
}

static int fairmile_couple_load_runtime(char *why, size_t room) {
  const char *usual[] = {"libonnxruntime.so.1", "libonnxruntime.so", "libonnxruntime.dylib"};
  const char *given = getenv("FAIRMILE_COUPLE_RUNTIME");
  const fairmile_ort_base *(*base)(void);
  void *library = NULL, *symbol;
  int at;
  setenv("ORT_DISABLE_TELEMETRY", "1", 0); /* a simulation sends nothing anywhere unless its user asks for that */
  if (given && *given) library = dlopen(given, RTLD_NOW | RTLD_LOCAL);
  for (at = 0; at < 3 && !library && !(given && *given); at++) library = dlopen(usual[at], RTLD_NOW | RTLD_LOCAL);
  symbol = library ? dlsym(library, "OrtGetApiBase") : NULL;
  if (!symbol) {
    snprintf(why, room, "FAIRMILE_COUPLE_RUNTIME must name the library of ONNX Runtime (%s)", dlerror());
    return 0;
  }
  memcpy(&base, &symbol, sizeof base);
  fairmile_coupled_model.ort = base()->table(1);
  if (!fairmile_coupled_model.ort)
    snprintf(why, room, "ONNX Runtime %s has no C interface of version 1", base()->version());
  return fairmile_coupled_model.ort != NULL;
}

/* Give an input (0) or output (1) of the model a place for its values: that of the field, or a buffer. */
static int fairmile_couple_place(int is_in, size_t number, const fairmile_couple_a_field *field, fairmile_ort memory,
                                 char *why, size_t room) {
  static const int bytes[] = {4, 8, 4, 8}, elements[] = {1, 11, 6, 7}; /* of FAIRMILE_FLOAT … FAIRMILE_INT64 */
  fairmile_couple_tensor *tensor = &fairmile_coupled_model.tensors[is_in][number];
  size_t slots = is_in ? (size_t)fairmile_coupled.slots : 1, slot, size;
  tensor->count = field->bytes / bytes[field->kind];
  size = (size_t)(tensor->count * bytes[tensor->kind]);
  tensor->values = (fairmile_ort *)calloc(slots, sizeof(fairmile_ort));
  if (is_in || tensor->kind != field->kind || (field->is_fortran && field->dims > 1))
    tensor->buffer = (char *)malloc(slots * size + 1);
  if (!tensor->values || (is_in && !tensor->buffer)) return snprintf(why, room, "no memory"), 0;
  for (slot = 0; slot < slots; slot++) {
    void *place = tensor->buffer ? (void *)(tensor->buffer + slot * size) : field->values;
    if (fairmile_couple_refused(
            FAIRMILE_ORT(FAIRMILE_ORT_CREATE_TENSOR,
                         (fairmile_ort, void *, size_t, const int64_t *, size_t, int, fairmile_ort *))(
                memory, place, size, field->shape, (size_t)field->dims, elements[tensor->kind], &tensor->values[slot]),
            why, room))
      return 0;
  }
  return 1;
}

/* Find the field for an input (0) or output (1) of the model; -1 if nobody asks for an output, -2 if it cannot be. */
static int fairmile_couple_match(int is_in, size_t number, fairmile_ort allocator, char *why, size_t room) {
  static const int elements[] = {1, 11, 6, 7};
  fairmile_ort type = NULL;
  const void *info = NULL;
  char *name = NULL;
  int element = 0, kind = 0, at;
  if (fairmile_couple_refused(
          FAIRMILE_ORT(is_in ? FAIRMILE_ORT_OUTPUT_NAME : FAIRMILE_ORT_INPUT_NAME,
                       (fairmile_ort, size_t, fairmile_ort, char **))(fairmile_coupled_model.session, number, allocator,
                                                                      &name),
          why, room) ||
      fairmile_couple_refused(FAIRMILE_ORT(is_in ? FAIRMILE_ORT_OUTPUT_TYPE : FAIRMILE_ORT_INPUT_TYPE,
                                           (fairmile_ort, size_t, fairmile_ort *))(fairmile_coupled_model.session,
                                                                                   number, &type),
                              why, room) ||
      fairmile_couple_refused(FAIRMILE_ORT(FAIRMILE_ORT_TENSOR_INFO, (fairmile_ort, const void **))(type, &info), why,
                              room) ||
      (info && fairmile_couple_refused(FAIRMILE_ORT(FAIRMILE_ORT_ELEMENT_TYPE, (const void *, int *))(info, &element),
                                       why, room)))
    return -2;
  ((void (*)(fairmile_ort))fairmile_coupled_model.ort->at[FAIRMILE_ORT_RELEASE_TYPE])(type);
  fairmile_coupled_model.names[is_in][number] = name;
  for (at = fairmile_coupled.count - 1; at >= 0; at--)
    if (fairmile_coupled.fields[at].is_in == is_in && !strcmp(fairmile_coupled.fields[at].label, name)) break;
  if (at < 0 && is_in) return -1;
  if (at < 0) return snprintf(why, room, "the model reads %s, which is no field of this program", name), -2;
  while (kind < 4 && elements[kind] != element) kind++;
  if (kind == 4) return snprintf(why, room, "%s of the model is not float, double, int32 or int64", name), -2;
  fairmile_coupled_model.tensors[is_in][number].kind = kind;
  return at;
}

/* Bind the inputs (0) or outputs (1) of the model to the fields of their names; outputs nobody asks for are dropped. */
static int fairmile_couple_bind(int is_in, fairmile_ort memory, fairmile_ort allocator, char *why, size_t room) {
  size_t given = 0, kept = 0, number;
  if (fairmile_couple_refused(
          FAIRMILE_ORT(is_in ? FAIRMILE_ORT_OUTPUT_COUNT : FAIRMILE_ORT_INPUT_COUNT, (fairmile_ort, size_t *))(
              fairmile_coupled_model.session, &given),
          why, room))
    return 0;
  for (number = 0; number < given; number++) {
    int field;
    if (kept == FAIRMILE_COUPLE_MOST_FIELDS) return snprintf(why, room, "the model has too many inputs or outputs"), 0;
    field = fairmile_couple_match(is_in, number, allocator, why, room);
    if (field == -2) return 0;
    if (field < 0) continue;
    fairmile_coupled_model.names[is_in][kept] = fairmile_coupled_model.names[is_in][number];
    fairmile_coupled_model.tensors[is_in][kept].kind = fairmile_coupled_model.tensors[is_in][number].kind;
    fairmile_coupled_model.tensors[is_in][kept].field = field;
    if (!fairmile_couple_place(is_in, kept++, &fairmile_coupled.fields[field], memory, why, room)) return 0;
  }
  *(is_in ? &fairmile_coupled_model.outputs : &fairmile_coupled_model.inputs) = kept;
  return 1;
}

/* Stop a computation that takes too long; ONNX Runtime looks for that before each node of the model. */
static void *fairmile_couple_watch(void *unused) {
  struct timespec nap;
  double nap_s = fairmile_coupled.timeout_s / 4;
  char why[8];
  nap_s = nap_s > 0.05 ? 0.05 : nap_s < 0.001 ? 0.001 : nap_s;
  nap.tv_sec = 0;
  nap.tv_nsec = (long)(nap_s * 1e9);
  for (;;) {
    nanosleep(&nap, NULL);
    pthread_mutex_lock(&fairmile_coupled_model.lock);
    if (fairmile_coupled_model.until > 0 && !fairmile_coupled_model.is_stopped &&
        fairmile_couple_now() > fairmile_coupled_model.until) {
      fairmile_coupled_model.is_stopped = 1;
      fairmile_couple_refused(
          FAIRMILE_ORT(FAIRMILE_ORT_SET_TERMINATE, (fairmile_ort))(fairmile_coupled_model.options), why, sizeof why);
    }
    pthread_mutex_unlock(&fairmile_coupled_model.lock);
  }
  return unused;
}

static int fairmile_couple_start_watch(char *why, size_t room) {
  pthread_t watch;
  sigset_t all, before;
  int failure;
  sigfillset(&all); /* signals are the program's */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  failure = pthread_create(&watch, NULL, fairmile_couple_watch, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failure) return snprintf(why, room, "cannot start a thread: %s", strerror(failure)), 0;
  pthread_detach(watch);
  return 1;
}

/* Load the model and bind it to the fields; 0 with the reason if that cannot be. */
static int fairmile_couple_load(const char *path, char *why, size_t room) {
  fairmile_ort env = NULL, options = NULL, memory = NULL, allocator = NULL;
  int threads = (int)fairmile_couple_number("FAIRMILE_COUPLE_THREADS", 1, 1), at;
  size_t output;
  if (!fairmile_couple_load_runtime(why, room)) return 0;
  if (fairmile_couple_refused(FAIRMILE_ORT(FAIRMILE_ORT_CREATE_ENV, (int, const char *, fairmile_ort *))(
                                  4 /* logs what is fatal alone: errors come back */, "fairmile_couple", &env),
                              why, room) ||
      fairmile_couple_refused(FAIRMILE_ORT(FAIRMILE_ORT_CREATE_OPTIONS, (fairmile_ort *))(&options), why, room) ||
      fairmile_couple_refused(FAIRMILE_ORT(FAIRMILE_ORT_SET_THREADS, (fairmile_ort, int))(options, threads), why,
                              room) ||
      fairmile_couple_refused(
          FAIRMILE_ORT(FAIRMILE_ORT_CREATE_SESSION, (fairmile_ort, const char *, fairmile_ort, fairmile_ort *))(
              env, path, options, &fairmile_coupled_model.session),
          why, room) ||
      fairmile_couple_refused(
          FAIRMILE_ORT(FAIRMILE_ORT_CREATE_RUN_OPTIONS, (fairmile_ort *))(&fairmile_coupled_model.options), why,
          room) ||
      fairmile_couple_refused(FAIRMILE_ORT(FAIRMILE_ORT_CPU_MEMORY, (int, int, fairmile_ort *))(0, 0, &memory), why,
                              room) ||
      fairmile_couple_refused(FAIRMILE_ORT(FAIRMILE_ORT_ALLOCATOR, (fairmile_ort *))(&allocator), why, room))
    return 0;
  if (!fairmile_couple_bind(0, memory, allocator, why, room) || !fairmile_couple_bind(1, memory, allocator, why, room))
    return 0;
  for (at = 0; at < fairmile_coupled.count; at++) {
    if (!fairmile_coupled.fields[at].is_in) continue;
    for (output = 0; output < fairmile_coupled_model.outputs; output++)
      if (fairmile_coupled_model.tensors[1][output].field == at) break;
    if (output == fairmile_coupled_model.outputs)
      return snprintf(why, room, "the model does not answer %s", fairmile_coupled.fields[at].label), 0;
  }
  fairmile_coupled_model.computed = (int64_t *)malloc((size_t)fairmile_coupled.slots * sizeof(int64_t));
  if (!fairmile_coupled_model.computed) return snprintf(why, room, "no memory"), 0;
  memset(fairmile_coupled_model.computed, -1, (size_t)fairmile_coupled.slots * sizeof(int64_t));
  return fairmile_couple_start_watch(why, room);
}

static void fairmile_couple_open(const char *path) {
  char why[1024];
  if (fairmile_couple_load(path, why, sizeof why)) {
    fairmile_coupled.state = 1;
    atexit(fairmile_couple_end);
    return;
  }
  fairmile_coupled_model.session = NULL;
  fairmile_couple_lose(why);
}

/* Write a value of one kind as another. */
static void fairmile_couple_convert(void *to, int to_kind, const void *from, int from_kind) {
  int64_t whole = from_kind == FAIRMILE_INT32 ? *(const int32_t *)from : 0;
  double value;
  if (from_kind == FAIRMILE_INT64) whole = *(const int64_t *)from;
  value = from_kind == FAIRMILE_FLOAT ? *(const float *)from : (double)whole;
  if (from_kind == FAIRMILE_DOUBLE) value = *(const double *)from;
  if (from_kind < FAIRMILE_INT32 && to_kind >= FAIRMILE_INT32) whole = (int64_t)value;
  if (to_kind == FAIRMILE_FLOAT) *(float *)to = (float)value;
  if (to_kind == FAIRMILE_DOUBLE) *(double *)to = value;
  if (to_kind == FAIRMILE_INT32) *(int32_t *)to = (int32_t)whole;
  if (to_kind == FAIRMILE_INT64) *(int64_t *)to = whole;
}

/* Copy between a field and a buffer of the model, in which the last index runs fastest. */
static void fairmile_couple_pass(const fairmile_couple_tensor *tensor, int64_t slot, int is_in) {
  static const int bytes[] = {4, 8, 4, 8};
  const fairmile_couple_a_field *field = &fairmile_coupled.fields[tensor->field];
  int own = bytes[field->kind], its = bytes[tensor->kind], dim, is_turned = field->is_fortran && field->dims > 1;
  char *buffer = tensor->buffer + slot * tensor->count * its, *values = (char *)field->values;
  int64_t at, here = 0, index[FAIRMILE_COUPLE_MOST_DIMS] = {0}, strides[FAIRMILE_COUPLE_MOST_DIMS];
  if (field->kind == tensor->kind && !is_turned) {
    memcpy(is_in ? values : buffer, is_in ? buffer : values, (size_t)field->bytes);
    return;
  }
  for (dim = 0; dim < field->dims; dim++) strides[dim] = dim ? strides[dim - 1] * field->shape[dim - 1] : 1;
  for (at = 0; at < tensor->count; at++) {
    char *mine = values + (is_turned ? here : at) * own, *theirs = buffer + at * its;
    if (is_in)
      fairmile_couple_convert(mine, field->kind, theirs, tensor->kind);
    else
      fairmile_couple_convert(theirs, tensor->kind, mine, field->kind);
    if (!is_turned) continue;
    for (dim = field->dims - 1; dim >= 0; dim--) { /* the next place of the buffer, and where the field has it */
      here += strides[dim];
      if (++index[dim] < field->shape[dim]) break;
      here -= strides[dim] * index[dim];
      index[dim] = 0;
    }
  }
}

/* Have the model compute its outputs into a slot; 0 with the reason if it cannot, and whether that took too long. */
static int fairmile_couple_infer(int64_t slot, int *is_late, char *why, size_t room) {
  fairmile_ort inputs[FAIRMILE_COUPLE_MOST_FIELDS], outputs[FAIRMILE_COUPLE_MOST_FIELDS], status;
  size_t at;
  char nothing[8];
  for (at = 0; at < fairmile_coupled_model.inputs; at++) {
    if (fairmile_coupled_model.tensors[0][at].buffer)
      fairmile_couple_pass(&fairmile_coupled_model.tensors[0][at], 0, 0);
    inputs[at] = fairmile_coupled_model.tensors[0][at].values[0];
  }
  for (at = 0; at < fairmile_coupled_model.outputs; at++)
    outputs[at] = fairmile_coupled_model.tensors[1][at].values[slot];
  pthread_mutex_lock(&fairmile_coupled_model.lock);
  fairmile_coupled_model.until = fairmile_couple_now() + fairmile_coupled.timeout_s;
  pthread_mutex_unlock(&fairmile_coupled_model.lock);
  status = FAIRMILE_ORT(FAIRMILE_ORT_RUN,
                        (fairmile_ort, fairmile_ort, const char *const *, const fairmile_ort *, size_t,
                         const char *const *, size_t, fairmile_ort *))(
      fairmile_coupled_model.session, fairmile_coupled_model.options, fairmile_coupled_model.names[0], inputs,
      fairmile_coupled_model.inputs, fairmile_coupled_model.names[1], fairmile_coupled_model.outputs, outputs);
  pthread_mutex_lock(&fairmile_coupled_model.lock);
  fairmile_coupled_model.until = 0;
  *is_late = fairmile_coupled_model.is_stopped;
  fairmile_coupled_model.is_stopped = 0;
  pthread_mutex_unlock(&fairmile_coupled_model.lock);
  if (*is_late)
    fairmile_couple_refused(
        FAIRMILE_ORT(FAIRMILE_ORT_UNSET_TERMINATE, (fairmile_ort))(fairmile_coupled_model.options), nothing,
        sizeof nothing);
  return !fairmile_couple_refused(status, why, room);
}

/* Note for the trace that the model computes, and that it has ended. */
static void fairmile_couple_time(int begins) {
#ifdef FAIRMILE_METER_H
  static int32_t timer = -1;
  if (timer < 0) timer = fairmile_timer("model");
  if (begins)
    fairmile_start(timer);
  else
    fairmile_stop(timer);
#else
  (void)begins;
#endif
}

/* A step whose answer this process computes. */
static int fairmile_couple_compute(void) {
  int64_t step = fairmile_coupled.coupled++, slot = step % fairmile_coupled.slots, due = step - fairmile_coupled.lag;
  static const int bytes[] = {4, 8, 4, 8};
  char why[1024];
  size_t at;
  int is_late;
  fairmile_couple_time(1);
  fairmile_coupled_model.computed[slot] = -1;
  if (fairmile_couple_infer(slot, &is_late, why, sizeof why)) {
    fairmile_coupled_model.computed[slot] = step;
  } else {
    if (!is_late) fairmile_coupled.state = 2; /* the next step would end so, too */
    fairmile_couple_lose(is_late ? "no answer in time" : why);
  }
  fairmile_couple_time(0);
  if (due < 0 || fairmile_coupled_model.computed[due % fairmile_coupled.slots] != due) return fairmile_couple_without();
  for (at = 0; at < fairmile_coupled_model.outputs; at++) {
    const fairmile_couple_tensor *tensor = &fairmile_coupled_model.tensors[1][at];
    const char *values = tensor->buffer + due % fairmile_coupled.slots * tensor->count * bytes[tensor->kind];
    if (!fairmile_couple_is_good(&fairmile_coupled.fields[tensor->field], values, tensor->kind, tensor->count))
      return fairmile_couple_without();
  }
  for (at = 0; at < fairmile_coupled_model.outputs; at++)
    fairmile_couple_pass(&fairmile_coupled_model.tensors[1][at], due % fairmile_coupled.slots, 1);
  fairmile_coupled.holds = 1;
  return FAIRMILE_ANSWERED;
}

/* Tell whether the model is of this user: only who may read our fields is sent them. */
static int fairmile_couple_is_ours(void) {
#if defined(SO_PEERCRED) && defined(__linux__)
  struct { /* ucred, which not all ways to compile have */
    int pid;
    unsigned uid, gid;
  } peer = {0, 0, 0};
  socklen_t size = sizeof peer;
  return !getsockopt(fairmile_coupled.socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid == geteuid();
#elif defined(__APPLE__)
  uid_t uid;
  gid_t gid;
  return !getpeereid(fairmile_coupled.socket, &uid, &gid) && uid == geteuid();
#else
  return 1;
#endif
}

/* Connect to the model, and wait for its socket if it is not there yet; 0 with the reason if it does not come.

   Whoever starts both programs removes the folder of the socket when the model has ended. */
static int fairmile_couple_connect(const char *path, double until, char *why, size_t room) {
  struct sockaddr_un address;
  struct timespec nap;
  struct timeval most;
  char folder[sizeof address.sun_path] = ".";
  const char *slash = strrchr(path, '/');
  int failure;
  nap.tv_sec = 0;
  nap.tv_nsec = 20000000;
  most.tv_sec = (time_t)fairmile_coupled.start_s + 1; /* where more connect than the model can take */
  most.tv_usec = 0;
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof address.sun_path) fairmile_couple_fail("the path of the socket is too long: ", path);
  strcpy(address.sun_path, path);
  if (slash && slash > path) {
    memcpy(folder, path, (size_t)(slash - path));
    folder[slash - path] = 0;
  }
  do {
    fairmile_coupled.socket = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fairmile_coupled.socket < 0) fairmile_couple_fail("no socket: ", strerror(errno));
    fcntl(fairmile_coupled.socket, F_SETFD, FD_CLOEXEC);
    setsockopt(fairmile_coupled.socket, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
#ifdef SO_NOSIGPIPE
    {
      int on = 1;
      setsockopt(fairmile_coupled.socket, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
    }
#endif
    if (!connect(fairmile_coupled.socket, (struct sockaddr *)&address, sizeof address)) {
      if (fairmile_couple_is_ours()) return 1;
      errno = EACCES;
    }
    failure = errno;
    fairmile_couple_leave();
    if (failure == EACCES) return snprintf(why, room, "%s is the socket of another user", path), 0;
    nanosleep(&nap, NULL);
  } while (fairmile_couple_now() < until && !access(folder, F_OK));
  snprintf(why, room, "no model answers at its socket %s (%s)", path, strerror(failure));
  return 0;
}

/* Write which cores this process may use, as a number in base 16. */
static void fairmile_couple_cores(char *text) {
  unsigned long words[128];
  int at = 0;
  strcpy(text, "0");
#ifdef SYS_sched_getaffinity
  at = (int)(syscall(SYS_sched_getaffinity, 0, sizeof words, words) / (long)sizeof *words);
#endif
  while (at > 0 && !words[at - 1]) at--;
  while (at-- > 0) text += sprintf(text, "%0*lx", (int)(2 * sizeof *words), words[at]);
}

/* Place the fields in memory, each at a multiple of 64 bytes, and describe them. */
static char *fairmile_couple_describe(void) {
  static const char *kinds[] = {"f4", "f8", "i4", "i8"};
  size_t room = 4096 + (size_t)fairmile_coupled.count * 512, used;
  char *text = (char *)malloc(room), cores[2049];
  int at, dim;
  if (!text) fairmile_couple_fail("no memory", "");
  fairmile_coupled.slot_bytes = 64;
  for (at = 0; at < fairmile_coupled.count; at++) {
    fairmile_coupled.fields[at].offset = fairmile_coupled.slot_bytes;
    fairmile_coupled.slot_bytes += (fairmile_coupled.fields[at].bytes + 63) / 64 * 64;
  }
  fairmile_couple_cores(cores);
  used = (size_t)snprintf(text, room,
                          "{\"protocol\": 3, \"cores\": \"%s\", \"rank\": %d, \"size\": %d, \"pid\": %ld, \"lag\": %lld, \"every\": %lld, "
                          "\"slots\": %lld, \"slot_bytes\": %lld, \"fields\": [",
                          cores, fairmile_coupled.rank, fairmile_coupled.size, (long)getpid(),
                          (long long)fairmile_coupled.lag, (long long)fairmile_coupled.every,
                          (long long)fairmile_coupled.slots, (long long)fairmile_coupled.slot_bytes);
  for (at = 0; at < fairmile_coupled.count; at++) {
    const fairmile_couple_a_field *field = &fairmile_coupled.fields[at];
    used += (size_t)snprintf(text + used, room - used,
                             "%s{\"label\": \"%s\", \"way\": \"%s\", \"kind\": \"%s\", \"order\": \"%s\", \"offset\": "
                             "%lld, \"bytes\": %lld, \"shape\": [",
                             at ? ", " : "", field->label, field->is_in ? "in" : "out", kinds[field->kind],
                             field->is_fortran ? "F" : "C", (long long)field->offset, (long long)field->bytes);
    for (dim = 0; dim < field->dims; dim++)
      used += (size_t)snprintf(text + used, room - used, "%s%lld", dim ? ", " : "", (long long)field->shape[dim]);
    used += (size_t)snprintf(text + used, room - used, "]}");
  }
  snprintf(text + used, room - used, "]}\n");
  return text;
}

/* The model in other ranks of the same MPI job. Each rank of the solver has one rank of the model; what is sent is copied
   to a slot, since the program changes its fields while a slow model has not received them yet. */
#if FAIRMILE_COUPLE_MPI
enum { FAIRMILE_COUPLE_NOTES = 1, FAIRMILE_COUPLE_TEXT = 2, FAIRMILE_COUPLE_FIELDS = 16 }; /* tags */

static struct {
  MPI_Comm own, line; /* the solver's ranks; all ranks, for our messages alone */
  MPI_Request listening, *sending; /* a note that may come; for each slot the note and the fields */
  fairmile_couple_note heard, *said;
  int model, is_met, is_gone, is_broken; /* gone: it said so; broken: an answer came in part */
} fairmile_coupled_ranks = {MPI_COMM_NULL, MPI_COMM_NULL, MPI_REQUEST_NULL, NULL, {0, 0}, NULL, 0, 0, 0, 0};

/* Wait for messages until a time; 0 if they have not all been moved by then. */
static int fairmile_couple_finish(MPI_Request *requests, int count, double until) {
  double began = fairmile_couple_now(), now = began;
  struct timespec nap;
  int is_done = 0;
  nap.tv_sec = 0;
  nap.tv_nsec = 50000;
  for (;;) {
    MPI_Testall(count, requests, &is_done, MPI_STATUSES_IGNORE);
    if (is_done || now > until) return is_done;
    now = fairmile_couple_now();
    if (now > began + 1e-3) nanosleep(&nap, NULL); /* who waits long keeps no other process from work */
  }
}

/* Receive a note until a time, as fairmile_couple_receive does. */
static int fairmile_couple_hear(fairmile_couple_note *note, double until) {
  if (fairmile_coupled_ranks.is_gone || fairmile_coupled_ranks.is_broken) return -1;
  if (fairmile_coupled_ranks.listening == MPI_REQUEST_NULL)
    MPI_Irecv(&fairmile_coupled_ranks.heard, (int)sizeof(fairmile_couple_note), MPI_BYTE, fairmile_coupled_ranks.model,
              FAIRMILE_COUPLE_NOTES, fairmile_coupled_ranks.line, &fairmile_coupled_ranks.listening);
  if (!fairmile_couple_finish(&fairmile_coupled_ranks.listening, 1, until)) return 0;
  *note = fairmile_coupled_ranks.heard;
  fairmile_coupled_ranks.is_gone = note->kind == 6;
  return note->kind == 6 ? -1 : 1;
}

/* Send what a slot holds. */
static void fairmile_couple_post(int64_t step) {
  int64_t slot = step % fairmile_coupled.slots;
  MPI_Request *requests = fairmile_coupled_ranks.sending + slot * (FAIRMILE_COUPLE_MOST_FIELDS + 1);
  fairmile_couple_note *note = &fairmile_coupled_ranks.said[slot];
  int at;
  note->kind = 1;
  note->step = step;
  MPI_Isend(note, (int)sizeof *note, MPI_BYTE, fairmile_coupled_ranks.model, FAIRMILE_COUPLE_NOTES,
            fairmile_coupled_ranks.line, requests);
  for (at = 0; at < fairmile_coupled.count; at++) {
    const fairmile_couple_a_field *field = &fairmile_coupled.fields[at];
    if (!field->is_in)
      MPI_Isend(fairmile_couple_slot(step) + field->offset, (int)field->bytes, MPI_BYTE, fairmile_coupled_ranks.model,
                FAIRMILE_COUPLE_FIELDS + at, fairmile_coupled_ranks.line, &requests[at + 1]);
  }
}

/* Receive the fields of an answer: where the program has them, or nowhere if it comes too late; 0 if they do not come. */
static int fairmile_couple_take(int64_t step, int is_wanted) {
  MPI_Request requests[FAIRMILE_COUPLE_MOST_FIELDS];
  int at, count = 0;
  for (at = 0; at < fairmile_coupled.count; at++) {
    const fairmile_couple_a_field *field = &fairmile_coupled.fields[at];
    if (!field->is_in) continue;
    MPI_Irecv(is_wanted ? (char *)field->values : fairmile_couple_slot(step) + field->offset, (int)field->bytes, MPI_BYTE,
              fairmile_coupled_ranks.model, FAIRMILE_COUPLE_FIELDS + at, fairmile_coupled_ranks.line, &requests[count++]);
  }
  if (fairmile_couple_finish(requests, count, fairmile_couple_now() + fairmile_coupled.timeout_s)) return 1;
  for (at = 0; at < count; at++)
    if (requests[at] != MPI_REQUEST_NULL) MPI_Cancel(&requests[at]);
  fairmile_coupled_ranks.is_broken = 1;
  return 0;
}

/* Receive answers until that to a step is there; 1: it is, 0: not in time, -1: the model is gone. */
static int fairmile_couple_await(int64_t step, int is_wanted, double until) {
  fairmile_couple_note note;
  while (fairmile_coupled.answered < step && !fairmile_coupled.is_stopping) {
    int got = fairmile_couple_hear(&note, until);
    if (got <= 0) return got;
    fairmile_coupled.is_stopping = note.kind == 4;
    is_wanted = is_wanted && !fairmile_coupled.is_checked; /* else the program may get it from its slot */
    if (note.kind == 2 && !fairmile_couple_take(note.step, is_wanted && note.step == step)) return -1;
    fairmile_coupled.answered = note.step;
  }
  if (step >= 0 && !fairmile_coupled.is_stopping)
    MPI_Waitall(fairmile_coupled.count + 1,
                fairmile_coupled_ranks.sending + step % fairmile_coupled.slots * (FAIRMILE_COUPLE_MOST_FIELDS + 1),
                MPI_STATUSES_IGNORE); /* what was answered has been received */
  return 1;
}

/* Tell the model that the solver ends, and wait until it has heard that. */
static void fairmile_couple_part(void) {
  double until = fairmile_couple_now() + fairmile_couple_number("FAIRMILE_COUPLE_END_S", 300, 0);
  static fairmile_couple_note note;
  static MPI_Request saying = MPI_REQUEST_NULL;
  fairmile_couple_note heard;
  if (!fairmile_coupled_ranks.is_met || fairmile_coupled_ranks.is_gone || fairmile_coupled_ranks.is_broken) return;
  note.kind = 3;
  note.step = fairmile_coupled.coupled;
  MPI_Isend(&note, (int)sizeof note, MPI_BYTE, fairmile_coupled_ranks.model, FAIRMILE_COUPLE_NOTES,
            fairmile_coupled_ranks.line, &saying);
  while (fairmile_couple_hear(&heard, until) > 0)
    if (heard.kind == 2 && !fairmile_couple_take(heard.step, 0)) break;
}

/* MPI_Finalize waits for all ranks. Where the model does not answer any more, that is for ever: end the job instead. */
static int fairmile_couple_finalize(MPI_Comm comm, int key, void *value, void *extra) {
  int is_missing, is_any = 0;
  (void)comm, (void)key, (void)value, (void)extra;
  fairmile_couple_end();
  is_missing = fairmile_coupled_ranks.is_met && !fairmile_coupled_ranks.is_gone;
  MPI_Allreduce(&is_missing, &is_any, 1, MPI_INT, MPI_MAX, fairmile_coupled_ranks.own);
  if (!is_any) return MPI_SUCCESS;
  if (is_missing) fprintf(stderr, "fairmile_couple: rank %d: the model does not end; the job is ended\n", fairmile_coupled.rank);
  return MPI_Abort(MPI_COMM_WORLD, 3);
}

/* Part the job into the ranks of the solver and those of the model, as serve() does on the other side. */
static void fairmile_couple_part_job(void) {
  double until = fairmile_couple_now() + fairmile_couple_number("FAIRMILE_COUPLE_START_S", 300, 0);
  int rank, size, at, mine = 0, models = 0, solvers = 0, me = 0, *roles, key;
  MPI_Request asking;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  roles = (int *)malloc((size_t)size * sizeof(int));
  if (!roles) fairmile_couple_fail("no memory", "");
  fairmile_coupled.rank = rank;
  MPI_Iallgather(&mine, 1, MPI_INT, roles, 1, MPI_INT, MPI_COMM_WORLD, &asking);
  if (!fairmile_couple_finish(&asking, 1, until))
    fairmile_couple_fail("a rank of the job became no part of it in time: it calls neither serve() nor ", "fairmile_couple_comm()");
  for (at = 0; at < size; at++) {
    me += at < rank && !roles[at];
    models += roles[at];
    solvers += !roles[at];
  }
  if (!models) fairmile_couple_fail("no model is in this job: ", "mpirun -n 3 ./solver : -n 1 python model.py");
  for (at = 0, key = me * models / solvers; at < size; at++)
    if (roles[at] && !key--) fairmile_coupled_ranks.model = at;
  free(roles);
  MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &fairmile_coupled_ranks.own);
  MPI_Comm_dup(MPI_COMM_WORLD, &fairmile_coupled_ranks.line);
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, fairmile_couple_finalize, &key, NULL);
  MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
}

MPI_Comm fairmile_couple_comm(void) {
  const char *path = getenv("FAIRMILE_COUPLE");
  int rank, size, is_begun = 0;
  if (fairmile_coupled_ranks.own != MPI_COMM_NULL) return fairmile_coupled_ranks.own;
  MPI_Initialized(&is_begun);
  if (!is_begun) fairmile_couple_fail("call MPI_Init before ", "fairmile_couple_comm()");
  fairmile_coupled.is_mpi = path && !strcmp(path, "mpi");
  fairmile_coupled_ranks.own = MPI_COMM_WORLD;
  if (fairmile_coupled.is_mpi) fairmile_couple_part_job();
  MPI_Comm_rank(fairmile_coupled_ranks.own, &rank);
  MPI_Comm_size(fairmile_coupled_ranks.own, &size);
  fairmile_couple_rank(rank, size);
  return fairmile_coupled_ranks.own;
}

/* The same for Fortran. */
int fairmile_couple_comm_f(void);
int fairmile_couple_comm_f(void) { return (int)MPI_Comm_c2f(fairmile_couple_comm()); }

/* Describe the fields to the model, and wait until it is ready. */
static void fairmile_couple_meet(double until) {
  char *text;
  fairmile_couple_note note, length;
  MPI_Request requests[2];
  int at, slots = (int)fairmile_coupled.slots, most = slots * (FAIRMILE_COUPLE_MOST_FIELDS + 1);
  if (!fairmile_coupled.is_mpi)
    fairmile_couple_fail("the model is in this MPI job: call fairmile_couple_comm() after MPI_Init, and use it in place ",
                         "of MPI_COMM_WORLD");
  text = fairmile_couple_describe();
  for (at = 0; at < fairmile_coupled.count; at++)
    if (fairmile_coupled.fields[at].bytes > INT32_MAX)
      fairmile_couple_fail("more than 2 GiB in one rank: ", fairmile_coupled.fields[at].label);
  fairmile_coupled.memory = (char *)malloc(
      (size_t)(FAIRMILE_COUPLE_WORDS * FAIRMILE_COUPLE_LINE + fairmile_coupled.slots * fairmile_coupled.slot_bytes));
  fairmile_coupled_ranks.said = (fairmile_couple_note *)malloc((size_t)slots * sizeof(fairmile_couple_note));
  fairmile_coupled_ranks.sending = (MPI_Request *)malloc((size_t)most * sizeof(MPI_Request));
  if (!fairmile_coupled.memory || !fairmile_coupled_ranks.said || !fairmile_coupled_ranks.sending)
    fairmile_couple_fail("no memory", "");
  for (at = 0; at < most; at++) fairmile_coupled_ranks.sending[at] = MPI_REQUEST_NULL;
  length.kind = 7;
  length.step = (int64_t)strlen(text);
  MPI_Isend(&length, (int)sizeof length, MPI_BYTE, fairmile_coupled_ranks.model, FAIRMILE_COUPLE_NOTES,
            fairmile_coupled_ranks.line, &requests[0]);
  MPI_Isend(text, (int)strlen(text), MPI_BYTE, fairmile_coupled_ranks.model, FAIRMILE_COUPLE_TEXT,
            fairmile_coupled_ranks.line, &requests[1]);
  fairmile_coupled_ranks.is_met = 1;
  if (!fairmile_couple_finish(requests, 2, until) || fairmile_couple_hear(&note, until) != 1 || note.kind != 5) {
    fairmile_couple_lose("the model did not become ready");
    return;
  }
  fairmile_coupled.state = 1;
  free(text);
}
#else
static void fairmile_couple_meet(double until) {
  (void)until;
  fairmile_couple_fail("the model is in this MPI job: include mpi.h before fairmile_couple.h, or for Fortran compile ",
                       "fairmile_couple.c with mpicc -DFAIRMILE_COUPLE_MPI");
}
#endif

static void fairmile_couple_begin(void) {
  const char *path = getenv("FAIRMILE_COUPLE");
  fairmile_couple_note note;
  double until;
  char *text, why[512];
  int file;
  int64_t bytes;
  fairmile_coupled.state = 2;
  if (!path || !*path) return;
  fairmile_coupled.lag = (int64_t)fairmile_couple_number("FAIRMILE_COUPLE_LAG", 0, 0);
  fairmile_coupled.every = (int64_t)fairmile_couple_number("FAIRMILE_COUPLE_EVERY", 1, 1);
  fairmile_coupled.timeout_s = fairmile_couple_number("FAIRMILE_COUPLE_TIMEOUT_S", 60, 0);
  fairmile_coupled.start_s = fairmile_couple_number("FAIRMILE_COUPLE_START_S", 300, 0);
  fairmile_coupled.fallback = getenv("FAIRMILE_COUPLE_FALLBACK");
  if (!fairmile_coupled.fallback || !*fairmile_coupled.fallback) fairmile_coupled.fallback = "stop";
  if (strcmp(fairmile_coupled.fallback, "stop") && strcmp(fairmile_coupled.fallback, "hold") &&
      strcmp(fairmile_coupled.fallback, "physics")) {
    fprintf(stderr, "fairmile_couple: FAIRMILE_COUPLE_FALLBACK is '%s': expected stop, hold or physics\n",
            fairmile_coupled.fallback);
    fairmile_couple_quit(2);
  }
  fairmile_coupled.is_checked = fairmile_couple_number("FAIRMILE_COUPLE_FINITE", 0, 0) > 0;
  fairmile_coupled.slots = fairmile_coupled.lag + 1;
  if (strlen(path) > 5 && !strcmp(path + strlen(path) - 5, ".onnx")) {
    fairmile_couple_open(path);
    return;
  }
  until = fairmile_couple_now() + fairmile_coupled.start_s;
  if (!strcmp(path, "mpi")) {
    fairmile_couple_meet(until);
    return;
  }
  if (!fairmile_couple_connect(path, until, why, sizeof why)) {
    fairmile_couple_lose(why);
    return;
  }
  text = fairmile_couple_describe();
  bytes = FAIRMILE_COUPLE_WORDS * FAIRMILE_COUPLE_LINE + fairmile_coupled.slots * fairmile_coupled.slot_bytes;
  file = fairmile_couple_memory(bytes);
  snprintf(why, sizeof why, "the model did not become ready");
  if (file < 0) snprintf(why, sizeof why, "no shared memory of %lld bytes: %s", (long long)bytes, strerror(errno));
  if (file < 0 || !fairmile_couple_send(text, strlen(text), file) || fairmile_couple_receive(&note, until) != 1 ||
      note.kind != 5) {
    fairmile_couple_lose(why);
    fairmile_couple_leave();
  } else {
    if (note.step == 1) fairmile_coupled.look_s = FAIRMILE_COUPLE_LOOK_S;
    fairmile_coupled.state = 1;
    atexit(fairmile_couple_end);
  }
  if (file >= 0) close(file);
  free(text);
}

/* Note for the trace that the step before has ended, and that the next one begins where there is one. */
static void fairmile_couple_turn(int begins) {
#ifdef FAIRMILE_METER_H
  if (fairmile_coupled.step) fairmile_phase_stop("step", fairmile_coupled.step - 1);
  if (begins) fairmile_phase_start("step", fairmile_coupled.step);
#else
  (void)begins;
#endif
}

/* Copy the fields of one way between the program and a slot of the memory. */
static void fairmile_couple_copy(int64_t step, int is_in) {
  char *slot = fairmile_couple_slot(step);
  int at;
  for (at = 0; at < fairmile_coupled.count; at++) {
    const fairmile_couple_a_field *field = &fairmile_coupled.fields[at];
    if (field->is_in != is_in) continue;
    if (is_in)
      memcpy(field->values, slot + field->offset, (size_t)field->bytes);
    else
      memcpy(slot + field->offset, field->values, (size_t)field->bytes);
  }
}

/* Take the answer to a step out of its slot; 0 if it is none to go on with. */
static int fairmile_couple_accept(int64_t step) {
  int at;
  if (fairmile_coupled.is_mpi && !fairmile_coupled.is_checked) return 1; /* it was received where the program has it */
  for (at = 0; at < fairmile_coupled.count; at++) {
    const fairmile_couple_a_field *field = &fairmile_coupled.fields[at];
    int64_t size = field->kind == FAIRMILE_DOUBLE || field->kind == FAIRMILE_INT64 ? 8 : 4;
    if (field->is_in && !fairmile_couple_is_good(field, fairmile_couple_slot(step) + field->offset, field->kind,
                                                 field->bytes / size))
      return 0;
  }
  fairmile_couple_copy(step, 1);
  return 1;
}

/* Tell the model that a step is in its slot; 0 if it is gone. */
static int fairmile_couple_ask(int64_t step) {
  fairmile_couple_note note;
  note.kind = 1;
  note.step = step;
#if FAIRMILE_COUPLE_MPI
  if (fairmile_coupled.is_mpi) {
    fairmile_couple_post(step);
    return !fairmile_coupled_ranks.is_gone && !fairmile_coupled_ranks.is_broken;
  }
#endif
  __atomic_store_n(fairmile_couple_word(FAIRMILE_COUPLE_ASKED), step + 1, __ATOMIC_SEQ_CST);
  if (!__atomic_load_n(fairmile_couple_word(FAIRMILE_COUPLE_MODEL_SLEEPS), __ATOMIC_SEQ_CST)) return 1;
  return fairmile_couple_send((const char *)&note, sizeof note, -1);
}

/* Look for the answer to a step for a while; 1 if it came. */
static int fairmile_couple_look_on(int64_t step) {
  double until = fairmile_couple_now() + fairmile_coupled.look_s;
  int looks = 0;
  do {
    for (looks = 0; looks < 64; looks++) {
      if (fairmile_couple_look(step)) return 1;
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#endif
    }
  } while (fairmile_couple_now() < until);
  return 0;
}

/* Receive notes until the model has answered a step; 1: it has, 0: not in time, -1: it is gone.

   A model that was too slow once is waited for no more until it has caught up. */
static int fairmile_couple_sleep(int64_t step, int is_wanted) {
  double until = fairmile_couple_now() + (fairmile_coupled.is_late ? 0 : fairmile_coupled.timeout_s);
  fairmile_couple_note note;
  int got = 1;
#if FAIRMILE_COUPLE_MPI
  if (fairmile_coupled.is_mpi) return fairmile_couple_await(step, is_wanted, until);
#endif
  (void)is_wanted;
  if (fairmile_couple_look_on(step)) return 1;
  __atomic_store_n(fairmile_couple_word(FAIRMILE_COUPLE_SOLVER_SLEEPS), 1, __ATOMIC_SEQ_CST);
  while (!fairmile_couple_look(step) && got > 0) {
    got = fairmile_couple_receive(&note, until);
    if (got > 0 && note.kind == 2 && note.step > fairmile_coupled.answered) fairmile_coupled.answered = note.step;
  }
  __atomic_store_n(fairmile_couple_word(FAIRMILE_COUPLE_SOLVER_SLEEPS), 0, __ATOMIC_SEQ_CST);
  return fairmile_couple_look(step) ? 1 : got; /* the last answer of a model that has ended counts */
}

/* Wait for the answer to a step; a late one to an earlier step only frees its slot. */
static int fairmile_couple_wait(int64_t step, int is_wanted) {
  int got = fairmile_couple_sleep(step, is_wanted);
  if (got < 0) {
    fairmile_couple_lose("the model has ended");
    fairmile_couple_leave();
    fairmile_coupled.state = 2;
  } else if (!got && !fairmile_coupled.is_late) {
    fairmile_couple_lose("no answer in time");
  }
  fairmile_coupled.is_late = !got;
  return got == 1 && !fairmile_coupled.is_stopping;
}

int fairmile_couple_step(void) {
  int64_t step, due;
  int is_good;
  if (!fairmile_coupled.state) fairmile_couple_begin();
  fairmile_couple_turn(1);
  if (fairmile_coupled.state != 1) {
    fairmile_coupled.step++;
    return fairmile_couple_without();
  }
  if (fairmile_coupled.step++ % fairmile_coupled.every)
    return fairmile_coupled.holds ? FAIRMILE_HELD : FAIRMILE_PHYSICS;
  if (fairmile_coupled_model.session) return fairmile_couple_compute();
  step = fairmile_coupled.coupled;
  /* Its slot must be free: the model has answered what was in it. */
  if (step >= fairmile_coupled.slots && fairmile_coupled.answered < step - fairmile_coupled.slots) {
    if (!fairmile_couple_wait(step - fairmile_coupled.slots, 0))
      return fairmile_coupled.is_stopping ? FAIRMILE_STOP : fairmile_couple_without();
  }
  fairmile_couple_trace(FAIRMILE_PUT, 0, step);
  fairmile_couple_copy(step, 0);
  if (!fairmile_couple_ask(step)) {
    fairmile_couple_lose("the model has ended");
    fairmile_couple_leave();
    fairmile_coupled.state = 2;
    return fairmile_couple_without();
  }
  fairmile_couple_trace(FAIRMILE_PUT, 2, step);
  fairmile_coupled.coupled++;
  due = step - fairmile_coupled.lag;
  if (due < 0) return FAIRMILE_PHYSICS;
  fairmile_couple_trace(FAIRMILE_GET, 0, due);
  if (!fairmile_couple_wait(due, 1)) {
    fairmile_couple_trace(FAIRMILE_GET, 2, due);
    return fairmile_coupled.is_stopping ? FAIRMILE_STOP : fairmile_couple_without();
  }
  fairmile_couple_trace(FAIRMILE_GET, 1, due);
  is_good = fairmile_couple_accept(due);
  fairmile_couple_trace(FAIRMILE_GET, 2, due);
  if (!is_good) return fairmile_couple_without();
  fairmile_coupled.holds = 1;
  return FAIRMILE_ANSWERED;
}

void fairmile_couple_end(void) {
  fairmile_couple_note note;
  if (fairmile_coupled.state && fairmile_coupled.state != 3) fairmile_couple_turn(0);
  if (fairmile_coupled.state == 1 && !fairmile_coupled_model.session) {
    /* Steps whose answers nobody uses any more are still seen by the model, which may be learning from them. */
    if (!fairmile_coupled.is_late && !fairmile_coupled.is_stopping)
      fairmile_coupled.is_late = fairmile_couple_sleep(fairmile_coupled.coupled - 1, 0) == 0;
    note.kind = 3;
    note.step = fairmile_coupled.coupled;
    if (fairmile_coupled.socket >= 0) fairmile_couple_send((const char *)&note, sizeof note, -1);
  }
#if FAIRMILE_COUPLE_MPI
  if (fairmile_coupled.is_mpi && fairmile_coupled.state != 3) fairmile_couple_part();
#endif
  fairmile_couple_leave();
  fairmile_coupled.state = 3;
}

#endif
#endif
