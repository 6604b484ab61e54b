"""Clock, power, temperature and throttle reasons by NVML, without another package."""

import ctypes

_CLOCK_SM = 1
_TEMPERATURE_GPU = 0
_REASONS = {
    0x001: "idle",
    0x002: "applications_clocks",
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "software_thermal",
    0x040: "hardware_thermal",
    0x080: "power_brake",
    0x100: "display_clocks",
}


class Nvml:
    """One GPU, by UUID. Without NVML, or where it does not know a figure, the figure is None."""

    def __init__(self, uuid):
        self._device = None
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        device = ctypes.c_void_p()
        found = (
            self._library.nvmlInit_v2() == 0
            and self._library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(device)) == 0
        )
        if found:
            self._device = device

    def _read(self, function, kind, *arguments):
        if self._device is None:
            return None
        value = kind()
        status = getattr(self._library, function)(self._device, *arguments, ctypes.byref(value))
        return value.value if status == 0 else None

    def sample(self):
        """What changes with load; takes about a millisecond."""
        power = self._read("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        reasons = self._read("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
        return {
            "nvml_sm_mhz": self._read("nvmlDeviceGetClockInfo", ctypes.c_uint, _CLOCK_SM),
            "power_w": None if power is None else power / 1000,
            "temperature_c": self._read("nvmlDeviceGetTemperature", ctypes.c_uint, _TEMPERATURE_GPU),
            "throttle": None if reasons is None else [n for bit, n in _REASONS.items() if reasons & bit],
        }

    def fixed(self):
        """What does not change with load."""
        limit = self._read("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint)
        return {
            "driver": self._driver(),
            "power_limit_w": None if limit is None else limit / 1000,
            "max_sm_mhz": self._read("nvmlDeviceGetMaxClockInfo", ctypes.c_uint, _CLOCK_SM),
        }

    def _driver(self):
        if self._device is None:
            return None
        text = ctypes.create_string_buffer(81)
        return text.value.decode() if self._library.nvmlSystemGetDriverVersion(text, 81) == 0 else None
