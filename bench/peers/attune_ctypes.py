"""attune's C interface (attune/attune_c.h) by ctypes; the structures mirror the header field by field.

Tensors are whatever has data_ptr() and stride(): PyTorch's, with the dimensions [batch, row, head, dim] in
any memory order in which dim is contiguous. A stream is an integer: torch.cuda.current_stream().cuda_stream.
"""

import ctypes
import os
import pathlib
import weakref
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_void_p,
)

DTYPES = {"bf16": 0, "fp16": 1}
OPS = {"forward": 0, "backward": 1}
LAYOUTS = {"bshd": 0, "bhsd": 1}
SCORES = {"any": 0, "peaked": 1}
MISS_POLICIES = {"heuristic": 0, "tune": 1, "background": 2, "fail": 3}
INFOS = {"problem": 0, "config": 1, "spec": 2, "kernel": 3, "build_key": 4, "origin": 5, "json": 6}

WarningCallback = ctypes.CFUNCTYPE(None, c_char_p, c_void_p)


class RuntimeOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("device", c_int32),
        ("use_cache", c_int32),
        ("cache_directory", c_char_p),
        ("packs", POINTER(c_char_p)),
        ("pack_count", c_size_t),
        ("allow_unsigned_packs", c_int32),
        ("allow_compiler", c_int32),
        ("check_pointers", c_int32),
        ("on_warning", WarningCallback),
        ("on_warning_user", c_void_p),
    ]


class Problem(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dtype", c_int32),
        ("layout", c_int32),
        ("head_dim", c_int32),
        ("head_dim_v", c_int32),
        ("heads", c_int32),
        ("heads_kv", c_int32),
        ("causal", c_int32),
        ("op", c_int32),
        ("batch", c_int64),
        ("seqlen_q", c_int64),
        ("seqlen_k", c_int64),
        ("deterministic", c_int32),
        ("scores", c_int32),
    ]


class PlanOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("on_miss", c_int32),
        ("has_stream", c_int32),
        ("tune_seconds", c_double),
        ("stream", c_void_p),
        ("pinned", c_int32),
        ("reserved", c_int32),
    ]


class Strides(Structure):
    _fields_ = [("batch", c_int64), ("head", c_int64), ("row", c_int64)]


class ForwardArgs(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("q_strides", Strides),
        ("k_strides", Strides),
        ("v_strides", Strides),
        ("o_strides", Strides),
        ("scale", c_float),
        ("reserved", c_float),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("stream", c_void_p),
    ]


class BackwardArgs(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("o", c_void_p),
        ("d_o", c_void_p),
        ("lse", c_void_p),
        ("d_lse", c_void_p),
        ("d_q", c_void_p),
        ("d_k", c_void_p),
        ("d_v", c_void_p),
        ("q_strides", Strides),
        ("k_strides", Strides),
        ("v_strides", Strides),
        ("o_strides", Strides),
        ("d_o_strides", Strides),
        ("d_q_strides", Strides),
        ("d_k_strides", Strides),
        ("d_v_strides", Strides),
        ("scale", c_float),
        ("reserved", c_float),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("stream", c_void_p),
    ]


# name: (result, arguments)
_FUNCTIONS = {
    "attune_version": (c_char_p, []),
    "attune_status_name": (c_char_p, [ctypes.c_int]),
    "attune_last_error": (c_char_p, []),
    "attune_runtime_options_init": (None, [POINTER(RuntimeOptions), c_size_t]),
    "attune_problem_init": (None, [POINTER(Problem), c_size_t]),
    "attune_plan_options_init": (None, [POINTER(PlanOptions), c_size_t]),
    "attune_forward_args_init": (None, [POINTER(ForwardArgs), c_size_t]),
    "attune_backward_args_init": (None, [POINTER(BackwardArgs), c_size_t]),
    "attune_runtime_create": (ctypes.c_int, [POINTER(RuntimeOptions), POINTER(c_void_p)]),
    "attune_runtime_destroy": (None, [c_void_p]),
    "attune_plan_create": (
        ctypes.c_int,
        [c_void_p, POINTER(Problem), POINTER(PlanOptions), POINTER(c_void_p)],
    ),
    "attune_plan_with_config": (ctypes.c_int, [c_void_p, POINTER(Problem), c_char_p, POINTER(c_void_p)]),
    "attune_plan_launch": (ctypes.c_int, [c_void_p, POINTER(ForwardArgs)]),
    "attune_plan_launch_backward": (ctypes.c_int, [c_void_p, POINTER(BackwardArgs)]),
    "attune_plan_workspace_bytes": (ctypes.c_int, [c_void_p, POINTER(c_size_t)]),
    "attune_plan_info": (ctypes.c_int, [c_void_p, ctypes.c_int, c_char_p, c_size_t, POINTER(c_size_t)]),
    "attune_plan_destroy": (None, [c_void_p]),
}


class AttuneError(RuntimeError):
    """A status other than ok: `status` is its name, the text is attune's."""

    def __init__(self, status, text):
        super().__init__(f"{text} ({status})")
        self.status = status


def find_library():
    """$ATTUNE_LIB, else libattune.so beside this file, with or without a version."""
    named = os.environ.get("ATTUNE_LIB")
    if named:
        return named
    folder = pathlib.Path(__file__).resolve().parent
    found = sorted(folder.glob("libattune.so*"))
    if not found:
        raise FileNotFoundError(f"no libattune.so in {folder}: name the library by --lib or ATTUNE_LIB")
    return str(found[0])


class Library:
    """The loaded library; path None: as find_library() says."""

    def __init__(self, path=None):
        self.path = os.path.abspath(path or find_library())
        self._library = ctypes.CDLL(self.path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    @property
    def version(self):
        return self.attune_version().decode()

    def check(self, status):
        if status:
            raise AttuneError(self.attune_status_name(status).decode(), self.attune_last_error().decode())

    def init(self, kind):
        """A structure with the library's defaults."""
        function = {
            RuntimeOptions: self.attune_runtime_options_init,
            Problem: self.attune_problem_init,
            PlanOptions: self.attune_plan_options_init,
            ForwardArgs: self.attune_forward_args_init,
            BackwardArgs: self.attune_backward_args_init,
        }[kind]
        value = kind()
        function(byref(value), ctypes.sizeof(kind))
        return value

    def problem(self, problem):
        """The C structure of a problem.Problem."""
        value = self.init(Problem)
        value.dtype = DTYPES[problem.dtype]
        value.layout = LAYOUTS[problem.layout]
        value.op = OPS[problem.op]
        value.scores = SCORES[problem.scores]
        value.causal, value.deterministic = problem.causal, problem.deterministic
        for field in ("head_dim", "head_dim_v", "heads", "heads_kv", "batch", "seqlen_q", "seqlen_k"):
            setattr(value, field, getattr(problem, field))
        return value


class Runtime:
    def __init__(
        self,
        library,
        device=-1,
        use_cache=True,
        cache_directory=None,
        packs=(),
        allow_unsigned_packs=False,
        allow_compiler=True,
        check_pointers=False,
        on_warning=None,
    ):
        self.lib = library
        options = library.init(RuntimeOptions)
        options.device = device
        options.use_cache = use_cache
        options.cache_directory = cache_directory and os.fsencode(cache_directory)
        folders = (c_char_p * len(packs))(*map(os.fsencode, packs))
        options.packs, options.pack_count = folders, len(packs)
        options.allow_unsigned_packs = allow_unsigned_packs
        options.allow_compiler = allow_compiler
        options.check_pointers = check_pointers
        if on_warning:
            # An attribute, since it must live as long as the runtime.
            self._on_warning = WarningCallback(lambda text, _: on_warning(text.decode()))
            options.on_warning = self._on_warning
        handle = c_void_p()
        library.check(library.attune_runtime_create(byref(options), byref(handle)))
        self._handle = handle
        self.close = weakref.finalize(self, library.attune_runtime_destroy, handle)

    def plan(self, problem, on_miss="heuristic", tune_seconds=None, stream=None, pinned=False):
        options = self.lib.init(PlanOptions)
        options.pinned = pinned
        options.on_miss = MISS_POLICIES[on_miss]
        if tune_seconds is not None:
            options.tune_seconds = tune_seconds
        if stream is not None:
            options.has_stream, options.stream = 1, stream
        handle = c_void_p()
        self.lib.check(
            self.lib.attune_plan_create(
                self._handle, byref(self.lib.problem(problem)), byref(options), byref(handle)
            )
        )
        return Plan(self, handle)

    def plan_with_config(self, problem, config):
        handle = c_void_p()
        self.lib.check(
            self.lib.attune_plan_with_config(
                self._handle, byref(self.lib.problem(problem)), config.encode(), byref(handle)
            )
        )
        return Plan(self, handle)


class Plan:
    """Made by Runtime. No launch may be pending when the last plan of a kernel goes: synchronize first."""

    def __init__(self, runtime, handle):
        self._runtime, self._handle = runtime, handle
        self.lib = runtime.lib
        self.close = weakref.finalize(self, self.lib.attune_plan_destroy, handle)

    def bind(self, q, k, v, o, lse=None, scale=0.0, stream=0):
        """A function without arguments that launches on these tensors, with as little Python as can be."""
        args = self.lib.init(ForwardArgs)
        tensors = {"q": q, "k": k, "v": v, "o": o}
        return self._bind(self.lib.attune_plan_launch, args, tensors, {"lse": lse}, scale, stream)

    def bind_backward(
        self, q, k, v, o, d_o, lse, d_q, d_k, d_v, workspace, d_lse=None, scale=0.0, stream=0
    ):
        """The same for a plan of op = backward. `workspace`: a tensor of workspace_bytes() bytes or more."""
        args = self.lib.init(BackwardArgs)
        args.workspace_bytes = workspace.numel() * workspace.element_size()
        tensors = {"q": q, "k": k, "v": v, "o": o, "d_o": d_o, "d_q": d_q, "d_k": d_k, "d_v": d_v}
        dense = {"lse": lse, "d_lse": d_lse, "workspace": workspace}
        return self._bind(self.lib.attune_plan_launch_backward, args, tensors, dense, scale, stream)

    def _bind(self, launch, args, tensors, dense, scale, stream):
        for name, tensor in tensors.items():
            batch, row, head, dim = tensor.stride()
            if dim != 1:
                raise ValueError(f"{name}: the last dimension has the stride {dim} (allowed: 1)")
            setattr(args, name, tensor.data_ptr())
            setattr(args, f"{name}_strides", Strides(batch, head, row))
        for name, tensor in dense.items():
            if tensor is not None:
                setattr(args, name, tensor.data_ptr())
        args.scale, args.stream = scale, stream
        handle, reference = self._handle, byref(args)

        def call():
            status = launch(handle, reference)
            if status:
                self.lib.check(status)

        call.tensors = (tensors, dense)  # their memory must live as long as the function
        return call

    def workspace_bytes(self):
        size = c_size_t()
        self.lib.check(self.lib.attune_plan_workspace_bytes(self._handle, byref(size)))
        return size.value

    def info(self, what):
        """One of INFOS, as text."""
        size = c_size_t()
        self.lib.check(self.lib.attune_plan_info(self._handle, INFOS[what], None, 0, byref(size)))
        text = ctypes.create_string_buffer(size.value + 1)
        self.lib.check(
            self.lib.attune_plan_info(self._handle, INFOS[what], text, size.value + 1, byref(size))
        )
        return text.value.decode()
