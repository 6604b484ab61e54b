/* attune for C, and for whatever calls C. Valid C11 and C++; needs no CUDA header.
 *
 * Every function that can fail returns a status; attune_last_error() has the words, for the calling thread. No C++
 * exception leaves. Structs begin with their size, as the caller compiled it: set it by ATTUNE_INIT(...), and a newer
 * library reads older callers rightly. Handles are opaque; null handles are refused with ATTUNE_INVALID_ARGUMENT,
 * except that destroying null does nothing. Every function is safe from any thread, but a handle must not be destroyed
 * while another thread uses it.
 */
#ifndef ATTUNE_C_H
#define ATTUNE_C_H

#include <stddef.h>
#include <stdint.h>

#include <attune/export.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum attune_status {
  ATTUNE_OK = 0,
  ATTUNE_INVALID_ARGUMENT = 1,
  ATTUNE_UNSUPPORTED = 2,
  ATTUNE_NO_DEVICE = 3,
  ATTUNE_NOT_FOUND = 4,
  ATTUNE_NOT_PREPARED = 5,
  ATTUNE_COMPILE_FAILED = 6,
  ATTUNE_DRIVER = 7,
  ATTUNE_OUT_OF_MEMORY = 8,
  ATTUNE_WRONG_RESULT = 9,
  ATTUNE_TIMEOUT = 10,
  ATTUNE_CACHE = 11,
  ATTUNE_PACK = 12,
  ATTUNE_IO = 13,
  ATTUNE_INTERRUPTED = 14,
  ATTUNE_INTERNAL = 15
} attune_status;

typedef enum attune_dtype { ATTUNE_BF16 = 0, ATTUNE_FP16 = 1 } attune_dtype;
typedef enum attune_op { ATTUNE_FORWARD = 0, ATTUNE_BACKWARD = 1 } attune_op;
typedef enum attune_layout { ATTUNE_BSHD = 0, ATTUNE_BHSD = 1 } attune_layout;
typedef enum attune_score_kind { ATTUNE_SCORES_ANY = 0, ATTUNE_SCORES_PEAKED = 1 } attune_score_kind;
typedef enum attune_miss_policy {
  ATTUNE_MISS_HEURISTIC = 0,
  ATTUNE_MISS_TUNE = 1,
  ATTUNE_MISS_BACKGROUND = 2,
  ATTUNE_MISS_FAIL = 3
} attune_miss_policy;

typedef struct attune_runtime attune_runtime;
typedef struct attune_plan attune_plan;
struct CUstream_st; /* cudaStream_t and CUstream point to it */

/* Gets one line of text; may be called from any thread. */
typedef void (*attune_warning_callback)(const char* text, void* user);

typedef struct attune_runtime_options {
  size_t struct_size;
  int32_t device;              /* ordinal; -1: the current context, else device 0 */
  int32_t use_cache;           /* 0 or 1 */
  const char* cache_directory; /* null: the default one */
  const char* const* packs;    /* folders */
  size_t pack_count;
  int32_t allow_unsigned_packs;
  int32_t allow_compiler;
  int32_t check_pointers;
  attune_warning_callback on_warning; /* null: stderr */
  void* on_warning_user;
} attune_runtime_options;

typedef struct attune_problem {
  size_t struct_size;
  int32_t dtype;      /* attune_dtype */
  int32_t layout;     /* attune_layout */
  int32_t head_dim;   /* of Q and K */
  int32_t head_dim_v; /* of V and O; 0: as head_dim */
  int32_t heads;
  int32_t heads_kv; /* 0: as heads */
  int32_t causal;   /* 0 or 1 */
  int32_t op;       /* attune_op */
  int64_t batch;
  int64_t seqlen_q;
  int64_t seqlen_k;
  int32_t deterministic; /* 0 or 1; backward: dQ is summed in one order, the same bits in every run (slower) */
  int32_t scores;        /* attune_score_kind; forward: what the kernel is chosen for */
} attune_problem;

typedef struct attune_plan_options {
  size_t struct_size;
  int32_t on_miss;    /* attune_miss_policy */
  int32_t has_stream; /* 1: `stream` is the stream of the launches to come */
  double tune_seconds;
  struct CUstream_st* stream;
  int32_t pinned;   /* 0 or 1; forward: every launch takes the same kernel, and so gives the same bits */
  int32_t reserved; /* 0 */
} attune_plan_options;

/* In elements; all zero: the problem's layout, dense. */
typedef struct attune_strides {
  int64_t batch, head, row;
} attune_strides;

typedef struct attune_forward_args {
  size_t struct_size;
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse; /* [batch, heads, seqlen_q]; null: not written */
  attune_strides q_strides, k_strides, v_strides, o_strides;
  float scale;     /* 0: 1 / sqrt(head_dim) */
  float reserved;  /* 0 */
  void* workspace; /* null: the runtime's own */
  size_t workspace_bytes;
  struct CUstream_st* stream;
} attune_forward_args;

/* Shapes, alignments and what may be null: see attune::BackwardArgs. */
typedef struct attune_backward_args {
  size_t struct_size;
  const void* q;
  const void* k;
  const void* v;
  const void* o;
  const void* d_o;
  const float* lse;   /* [batch, heads, seqlen_q], of the forward launch */
  const float* d_lse; /* [batch, heads, seqlen_q]; null: zeros */
  void* d_q;
  void* d_k;
  void* d_v;
  attune_strides q_strides, k_strides, v_strides, o_strides, d_o_strides, d_q_strides, d_k_strides, d_v_strides;
  float scale;     /* 0: 1 / sqrt(head_dim) */
  float reserved;  /* 0 */
  void* workspace; /* attune_plan_workspace_bytes() bytes, aligned to 256; contents do not matter */
  size_t workspace_bytes;
  struct CUstream_st* stream;
} attune_backward_args;

typedef enum attune_info {
  ATTUNE_INFO_PROBLEM = 0, /* canonical texts */
  ATTUNE_INFO_CONFIG = 1,
  ATTUNE_INFO_SPEC = 2,
  ATTUNE_INFO_KERNEL = 3,
  ATTUNE_INFO_BUILD_KEY = 4,
  ATTUNE_INFO_ORIGIN = 5, /* "pack", "cache", "tuned", "heuristic" or "override" */
  ATTUNE_INFO_JSON = 6    /* all of them and the numbers, one JSON object */
} attune_info;

/* "0.1.0" */
ATTUNE_API const char* attune_version(void);
/* Name of a status, "invalid_argument" for example; "unknown" for a number that is none. */
ATTUNE_API const char* attune_status_name(attune_status status);
/* The words of the calling thread's last failure; empty if there was none. Valid until the thread's next call. */
ATTUNE_API const char* attune_last_error(void);

/* Fill a struct with its defaults, struct_size included. */
ATTUNE_API void attune_runtime_options_init(attune_runtime_options* options, size_t struct_size);
ATTUNE_API void attune_problem_init(attune_problem* problem, size_t struct_size);
ATTUNE_API void attune_plan_options_init(attune_plan_options* options, size_t struct_size);
ATTUNE_API void attune_forward_args_init(attune_forward_args* args, size_t struct_size);
ATTUNE_API void attune_backward_args_init(attune_backward_args* args, size_t struct_size);

/* options may be null: the defaults. */
ATTUNE_API attune_status attune_runtime_create(const attune_runtime_options* options, attune_runtime** runtime);
ATTUNE_API void attune_runtime_destroy(attune_runtime* runtime);

/* May compile, load and read the cache. options may be null. */
ATTUNE_API attune_status attune_plan_create(attune_runtime* runtime, const attune_problem* problem,
                                            const attune_plan_options* options, attune_plan** plan);
/* The same with a config of the caller's, e.g. "consumers=2,block_n=128,stages=2". */
ATTUNE_API attune_status attune_plan_with_config(attune_runtime* runtime, const attune_problem* problem,
                                                 const char* config, attune_plan** plan);
/* Queues the computation; see attune::Plan::launch. A plan of ATTUNE_BACKWARD takes the second one, any other plan the
 * first one. */
ATTUNE_API attune_status attune_plan_launch(const attune_plan* plan, const attune_forward_args* args);
ATTUNE_API attune_status attune_plan_launch_backward(const attune_plan* plan, const attune_backward_args* args);
/* Of one launch. Forward: 0 or 8, and the runtime has some of its own. Backward: the caller must pass it. */
ATTUNE_API attune_status attune_plan_workspace_bytes(const attune_plan* plan, size_t* bytes);
/* Copies at most `capacity` bytes, terminating zero included, to `text` (null with capacity 0: none) and sets `length`
 * (may be null) to the whole text's length without the zero. */
ATTUNE_API attune_status attune_plan_info(const attune_plan* plan, attune_info what, char* text, size_t capacity,
                                          size_t* length);
/* The plan lives on while launches that were queued run; its kernel is unloaded with the last plan that uses it. */
ATTUNE_API void attune_plan_destroy(attune_plan* plan);

#ifdef __cplusplus
}
#endif

#define ATTUNE_INIT_RUNTIME_OPTIONS(options) attune_runtime_options_init((options), sizeof(attune_runtime_options))
#define ATTUNE_INIT_PROBLEM(problem) attune_problem_init((problem), sizeof(attune_problem))
#define ATTUNE_INIT_PLAN_OPTIONS(options) attune_plan_options_init((options), sizeof(attune_plan_options))
#define ATTUNE_INIT_FORWARD_ARGS(args) attune_forward_args_init((args), sizeof(attune_forward_args))
#define ATTUNE_INIT_BACKWARD_ARGS(args) attune_backward_args_init((args), sizeof(attune_backward_args))

#endif /* ATTUNE_C_H */
