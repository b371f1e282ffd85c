"""ESP-IDF: a component, `idf_component.yml`, with a project that has its store on an SD card."""

from poet.firmware.packages.contents import FLAGS, VERSION, Contents, filled
from poet.firmware.packages.example import training

USE = """
Copy this folder into `components/` of a project, or name it in the `idf_component.yml` of one.
`idf.py build` in `examples/train` builds the example, which has `card.img` at the beginning of an
SD card on SPI, without a file system. The pins are at its beginning.
"""


def files(contents: Contents) -> dict[str, str]:
    name = contents.name
    sources = "\n".join(f'         "{path}"' for path in contents.paths)
    return {
        "CMakeLists.txt": filled(_CMAKE, sources=sources.strip(), flags=" ".join(FLAGS)),
        "idf_component.yml": filled(_COMPONENT, version=VERSION, sentence=contents.sentence),
        "examples/train/CMakeLists.txt": filled(_PROJECT, name=name),
        "examples/train/main/CMakeLists.txt": _MAIN_CMAKE,
        "examples/train/main/idf_component.yml": filled(_MAIN_COMPONENT, name=name),
        "examples/train/main/main.c": filled(_BEFORE, name=name) + training(contents) + _AFTER,
    }


_CMAKE = """\
idf_component_register(
    SRCS @sources@
    INCLUDE_DIRS "src")
target_compile_options(${COMPONENT_LIB} PRIVATE @flags@)
"""
_COMPONENT = """\
version: "@version@"
description: "@sentence@"
url: "https://pypi.org/project/poet-training/"
dependencies:
  idf: ">=5.0"
"""
_PROJECT = """\
cmake_minimum_required(VERSION 3.16)
include($ENV{IDF_PATH}/tools/cmake/project.cmake)
project(@name@_train)
"""
_MAIN_CMAKE = """\
idf_component_register(SRCS "main.c")
"""
_MAIN_COMPONENT = """\
dependencies:
  @name@:
    version: "*"
    override_path: "../../../"
"""
_BEFORE = """\
/* Trains a network that lives at the beginning of an SD card, and says the loss of each step. */
#include <stdio.h>

#include "driver/sdspi_host.h"
#include "driver/spi_common.h"
#include "sdmmc_cmd.h"

#include "@name@.h"

enum { MISO = 19, MOSI = 23, CLOCK = 18, CHIP_SELECT = 5 }; /* they depend on the board */

static sdmmc_card_t card;

static int read_store(void *user, uint32_t offset, void *to, uint32_t count)
{
    (void)user;
    return sdmmc_read_sectors(&card, to, offset / POET_SECTOR, count / POET_SECTOR) != ESP_OK;
}

static int write_store(void *user, uint32_t offset, const void *from, uint32_t count)
{
    (void)user;
    return sdmmc_write_sectors(&card, from, offset / POET_SECTOR, count / POET_SECTOR) != ESP_OK;
}

static void say(uint32_t step, float loss)
{
    printf("step %u loss %f\\n", (unsigned)step, (double)loss);
}

"""
_AFTER = """
static esp_err_t open_card(void)
{
    sdmmc_host_t host = SDSPI_HOST_DEFAULT();
    sdspi_device_config_t slot = SDSPI_DEVICE_CONFIG_DEFAULT();
    spi_bus_config_t bus = {.mosi_io_num = MOSI,
                            .miso_io_num = MISO,
                            .sclk_io_num = CLOCK,
                            .quadwp_io_num = -1,
                            .quadhd_io_num = -1};
    sdspi_dev_handle_t device;
    slot.gpio_cs = CHIP_SELECT;
    slot.host_id = host.slot;
    esp_err_t error = spi_bus_initialize(host.slot, &bus, SDSPI_DEFAULT_DMA);
    if (error == ESP_OK)
        error = sdspi_host_init();
    if (error == ESP_OK)
        error = sdspi_host_init_device(&slot, &device);
    if (error != ESP_OK)
        return error;
    host.slot = device;
    return sdmmc_card_init(&host, &card);
}

void app_main(void)
{
    if (open_card() != ESP_OK) {
        printf("error: no SD card\\n");
        return;
    }
    enum poet_error error = train();
    printf("%s\\n", error == POET_OK ? "done" : poet_error_text(error));
}
"""
