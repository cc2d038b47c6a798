"""Compiles a CUDA source by NVRTC: LIBRARY SOURCE OUTPUT OPTION...; prints the compiler's log."""

import ctypes
import sys

library, source, output, *options = sys.argv[1:]
nvrtc = ctypes.CDLL(library)


def call(name, *arguments):
    code = getattr(nvrtc, name)(*arguments)
    if code != 0 and name != "nvrtcCompileProgram":
        sys.exit(f"{name} returns {code}")
    return code


def answer(size_of, of):
    size = ctypes.c_size_t()
    call(size_of, program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    call(of, program, text)
    return text.raw


program = ctypes.c_void_p()
with open(source, "rb") as file:
    text = file.read()
call("nvrtcCreateProgram", ctypes.byref(program), text, b"copy_rows.cu", 0, None, None)
words = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
code = call("nvrtcCompileProgram", program, len(options), words)
print(answer("nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0").decode())
if code != 0:
    sys.exit(f"the source does not compile: {code}")
with open(output, "wb") as file:
    file.write(answer("nvrtcGetCUBINSize", "nvrtcGetCUBIN"))
