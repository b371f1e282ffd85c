"""CMake: a library to add, and the program of the plain folder as its example, board and all."""

import shlex

from poet.firmware.boards import emulator_command
from poet.firmware.packages.contents import FLAGS, VERSION, Contents, filled

USE = """
`add_subdirectory` this folder and link with the target of its name. By itself it builds the
example, the program that `poet emulate` runs; for a board with `cmake -B build
-DCMAKE_TOOLCHAIN_FILE=cmake/board.cmake`. `cmake --build build --target run` runs it on
`card.img`: on this computer, or on the board that QEMU emulates.
"""
EXAMPLE = "examples/train"


def files(contents: Contents) -> dict[str, str]:
    board = contents.board
    own = ["main.c", "board.c"]
    if board is not None:
        own += ["start.c", "limit.c", "bytes.c"]
    copied = ["board.h", *own]
    run = [f"$<TARGET_FILE:{contents.name}_train>"]
    texts = {}
    if board is not None:
        copied += ["mpu.h", "clock.h", "link.ld"]
        run = emulator_command(board, run[0])
        texts["cmake/board.cmake"] = filled(
            _TOOLCHAIN, flags=f"-mthumb {' '.join(board.cpu)} {contents.board_flags}"
        )
    sources = "\n".join(f"  {path}" for path in contents.paths)
    values = {"name": contents.name, "flags": " ".join(FLAGS), "version": VERSION}
    texts["CMakeLists.txt"] = filled(_LIBRARY, sources=sources, **values)
    texts[f"{EXAMPLE}/CMakeLists.txt"] = filled(
        _EXAMPLE, own=" ".join(own), run=shlex.join(run).replace("'", '"'),
        link="" if board is None else filled(_LINK, **values),
        **values,
    )  # fmt: skip
    for file in copied:
        texts[f"{EXAMPLE}/{file}"] = (contents.plain / file).read_text()
    return texts


_TOOLCHAIN = """\
# The cross compiler, and what it is told of the board.
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR arm)
set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_C_FLAGS_INIT "@flags@")
"""
_LIBRARY = """\
cmake_minimum_required(VERSION 3.16)
project(@name@ VERSION @version@ LANGUAGES C)

add_library(@name@ STATIC
@sources@
)
target_include_directories(@name@ PUBLIC src)
target_compile_features(@name@ PUBLIC c_std_11)
target_compile_options(@name@ PRIVATE @flags@)

if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  add_subdirectory(examples/train)
endif()
"""
_EXAMPLE = """\
add_executable(@name@_train @own@)
target_include_directories(@name@_train PRIVATE . ../../src/poet)
target_compile_options(@name@_train PRIVATE @flags@)
target_link_libraries(@name@_train PRIVATE @name@)
@link@
add_custom_target(run
  COMMAND @run@
  WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/../..
  DEPENDS @name@_train
  USES_TERMINAL VERBATIM)
"""
_LINK = """\
target_link_libraries(@name@_train PRIVATE gcc)
target_link_options(@name@_train PRIVATE
  -nostdlib -T ${CMAKE_CURRENT_SOURCE_DIR}/link.ld -Wl,--gc-sections)
set_target_properties(@name@_train PROPERTIES
  SUFFIX .elf
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/link.ld)
"""
