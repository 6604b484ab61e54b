"""What a measurement depends on besides the kernel, for the JSON beside each table."""

import datetime
import platform
import shlex
import sys

import torch

from nvml import Nvml


def add_arguments(parser):
    parser.add_argument(
        "--commit", default="", metavar="ID", help="the commit that was measured, for the record"
    )
    parser.add_argument("--device", type=int, default=0, metavar="N", help="which GPU (default: 0)")


def open_nvml():
    return Nvml(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def require_gpu(parser, args):
    """Makes the one of --device the current one; ends the program if there is none."""
    if not torch.cuda.is_available():
        parser.exit(3, f"{parser.prog}: no usable GPU\n")
    if not 0 <= args.device < torch.cuda.device_count():
        parser.error(f"--device: {args.device} (allowed: 0 to {torch.cuda.device_count() - 1})")
    torch.cuda.set_device(args.device)


def describe(args, library, nvml):
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "commit": args.commit,
        "attune": library.version,
        "gpu": properties.name,
        "sms": properties.multi_processor_count,
        **nvml.fixed(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
    }
