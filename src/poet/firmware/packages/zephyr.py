"""Zephyr: a module, with a sample that has its store on a disk of Zephyr's."""

from poet.firmware.packages.contents import FLAGS, Contents, filled
from poet.firmware.packages.example import training

USE = """
Name this folder in `ZEPHYR_EXTRA_MODULES`, or in the manifest of west, and set `CONFIG_` and the
name of the folder's `Kconfig` to `y`. `west build -b BOARD samples/train` builds the sample,
which has `card.img` at the beginning of the disk `SD`, without a file system: any board does that
has such a disk.
"""


def files(contents: Contents) -> dict[str, str]:
    name, symbol = contents.name, contents.name.upper()
    sources = "\n".join(f"    ../{path}" for path in contents.paths)
    return {
        "zephyr/module.yml": filled(_MODULE, name=name),
        "zephyr/CMakeLists.txt": filled(
            _CMAKE, symbol=symbol, sources=sources, flags=" ".join(FLAGS)
        ),
        "zephyr/Kconfig": filled(_KCONFIG, symbol=symbol, sentence=contents.sentence),
        "samples/train/CMakeLists.txt": filled(_SAMPLE_CMAKE, name=name),
        "samples/train/prj.conf": filled(_SAMPLE_CONFIG, symbol=symbol),
        "samples/train/sample.yaml": filled(_SAMPLE, name=name),
        "samples/train/src/main.c": filled(_BEFORE, name=name) + training(contents) + _AFTER,
    }


_MODULE = """\
name: @name@
build:
  cmake: zephyr
  kconfig: zephyr/Kconfig
samples:
  - samples
"""
_CMAKE = """\
if(CONFIG_@symbol@)
  zephyr_include_directories(../src)
  zephyr_library()
  zephyr_library_sources(
@sources@
  )
  zephyr_library_compile_options(@flags@)
endif()
"""
_KCONFIG = """\
config @symbol@
	bool "@sentence@"
"""
_SAMPLE_CMAKE = """\
cmake_minimum_required(VERSION 3.20.0)
list(APPEND ZEPHYR_EXTRA_MODULES ${CMAKE_CURRENT_SOURCE_DIR}/../..)
find_package(Zephyr REQUIRED HINTS $ENV{ZEPHYR_BASE})
project(@name@_train LANGUAGES C)
target_sources(app PRIVATE src/main.c)
"""
_SAMPLE_CONFIG = """\
CONFIG_@symbol@=y
CONFIG_DISK_ACCESS=y
"""
_SAMPLE = """\
sample:
  name: @name@
tests:
  @name@.train:
    build_only: true
    tags: training
    filter: dt_compat_enabled("zephyr,sdmmc-disk")
"""
_BEFORE = """\
/* Trains a network that lives at the beginning of a disk, and says the loss of each step. */
#include <zephyr/kernel.h>
#include <zephyr/storage/disk_access.h>
#include <zephyr/sys/printk.h>

#include <@name@.h>

static const char disk[] = "SD";

static int read_store(void *user, uint32_t offset, void *to, uint32_t count)
{
    (void)user;
    return disk_access_read(disk, to, offset / POET_SECTOR, count / POET_SECTOR);
}

static int write_store(void *user, uint32_t offset, const void *from, uint32_t count)
{
    (void)user;
    return disk_access_write(disk, from, offset / POET_SECTOR, count / POET_SECTOR);
}

static int flush_store(void *user)
{
    (void)user;
    return disk_access_ioctl(disk, DISK_IOCTL_CTRL_SYNC, NULL);
}

/* Millionths, since printk need not know float. */
static void say(uint32_t step, float loss)
{
    printk("step %u loss %d millionths\\n", (unsigned)step, (int)(loss * 1e6f));
}

"""
_AFTER = """
int main(void)
{
    uint32_t sector_bytes = 0;
    io.flush = flush_store;
    if (disk_access_init(disk) != 0 ||
        disk_access_ioctl(disk, DISK_IOCTL_GET_SECTOR_SIZE, &sector_bytes) != 0 ||
        sector_bytes != POET_SECTOR) {
        printk("error: no disk with sectors of 512 bytes\\n");
        return 0;
    }
    enum poet_error error = train();
    printk("%s\\n", error == POET_OK ? "done" : poet_error_text(error));
    return 0;
}
"""
