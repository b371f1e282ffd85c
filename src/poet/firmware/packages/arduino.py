"""Arduino: a library of format 1.5, `library.properties`, with a sketch as its example."""

from poet.firmware.packages.contents import VERSION, Contents, filled
from poet.firmware.packages.example import training

USE = """
Copy this folder into `libraries/` of the sketchbook, or add it as a ZIP. The example `train`
keeps the network in the file `card.img` of an SD card, with the library SD. Arduino's own
compiler flags may fuse products with sums: then losses are equal to those of a host within
rounding, not bit for bit (`-ffp-contract=off` in `platform.local.txt` makes them so).
"""


def files(contents: Contents) -> dict[str, str]:
    return {
        "library.properties": filled(
            _PROPERTIES, name=contents.name, version=VERSION, sentence=contents.sentence
        ),
        "keywords.txt": _KEYWORDS,
        "examples/train/train.ino": sketch(contents),
    }


def sketch(contents: Contents) -> str:
    """For every board of Arduino's that has the library SD, in PlatformIO, too."""
    return filled(_BEFORE, name=contents.name) + training(contents) + _AFTER


_PROPERTIES = """\
name=@name@
version=@version@
author=POET
maintainer=POET
sentence=@sentence@.
paragraph=Plain C with an interface of a dozen functions, without malloc; survives power cuts.
category=Data Processing
url=https://pypi.org/project/poet-training/
architectures=*
includes=@name@.h
depends=SD
"""
_WORDS = (
    "poet_get_weights",
    "poet_error_text",
    "poet_format",
    "poet_infer",
    "poet_init",
    "poet_load",
    "poet_save",
    "poet_train_next",
    "poet_train_step",
    "poet_train_stored",
)
_KEYWORDS = "".join(f"{word}\tKEYWORD2\n" for word in _WORDS)
_BEFORE = """\
// Trains a network that lives in the file card.img of an SD card, and says the loss of each step.
#include <SD.h>
#include <SPI.h>

#include <@name@.h>

static const int CHIP_SELECT = 10;  // of the card; it depends on the board
static File card;

static int read_store(void *, uint32_t offset, void *to, uint32_t count) {
  return !card.seek(offset) || card.read((uint8_t *)to, count) != (int)count;
}

static int write_store(void *, uint32_t offset, const void *from, uint32_t count) {
  return !card.seek(offset) || card.write((const uint8_t *)from, count) != count;
}

static int flush_store(void *) {
  card.flush();
  return 0;
}

static void say(uint32_t step, float loss) {
  Serial.print("step ");
  Serial.print((unsigned long)step);
  Serial.print(" loss ");
  Serial.println(loss, 6);
}

"""
_AFTER = """
void setup() {
  Serial.begin(115200);
  if (!SD.begin(CHIP_SELECT)) {
    Serial.println("error: no SD card");
    return;
  }
#ifdef ESP32
  card = SD.open("/card.img", "r+");
#else
  card = SD.open("card.img", O_RDWR);
#endif
  if (!card) {
    Serial.println("error: there is no card.img");
    return;
  }
  io.flush = flush_store;
  enum poet_error error = train();
  card.close();
  Serial.println(error == POET_OK ? "done" : poet_error_text(error));
}

void loop() {}
"""
