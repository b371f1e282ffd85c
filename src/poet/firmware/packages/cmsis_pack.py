"""CMSIS-Pack: the description of a pack (`.pdsc`), of one component and a template that uses it."""

from xml.sax.saxutils import escape, quoteattr

from poet.firmware.packages.contents import HOME, VERSION, Contents, filled
from poet.firmware.packages.example import training

VENDOR = "POET"
DATE = "2026-11-19"
"""Of the release that the description names: a file says the same whenever it is written."""
USE = """
`packchk POET.*.pdsc` checks the folder and `gen_pack.sh`, or any zip, makes the pack of it. The
component is `Machine Learning:Training`; it brings the template `main.c`, whose four functions
for the store and the console are the project's. Compile it with `-ffp-contract=off`: then losses
are those of a host, bit for bit.
"""


def files(contents: Contents) -> dict[str, str]:
    listed = [
        f"        <file category={quoteattr(kind)} name={quoteattr(path)}{more}/>"
        for kind, path, more in (
            ("include", "src/", ""),
            ("header", f"src/{contents.name}.h", ""),
            ("header", f"{HOME}/poet.h", ""),
            ("header", f"{HOME}/network.h", ""),
            ("doc", "README.md", ""),
            ("source", "template/main.c", ' attr="template" select="Training on a device"'),
            *(("source", path, "") for path in contents.paths),
        )
    ]
    return {
        f"{VENDOR}.{contents.name}.pdsc": filled(
            _PDSC, name=escape(contents.name), sentence=escape(contents.sentence),
            vendor=VENDOR, version=VERSION, date=DATE, files="\n".join(listed),
        ),
        "template/main.c": filled(_BEFORE, name=contents.name) + training(contents) + _AFTER,
    }  # fmt: skip


_PDSC = """\
<?xml version="1.0" encoding="UTF-8"?>
<package schemaVersion="1.7.7" xmlns:xs="http://www.w3.org/2001/XMLSchema-instance"
         xs:noNamespaceSchemaLocation="PACK.xsd">
  <vendor>@vendor@</vendor>
  <name>@name@</name>
  <description>@sentence@</description>
  <url>https://pypi.org/project/poet-training/</url>
  <releases>
    <release version="@version@" date="@date@">As poet emit wrote it</release>
  </releases>
  <conditions>
    <condition id="Cortex-M">
      <accept Dcore="Cortex-M0"/>
      <accept Dcore="Cortex-M0+"/>
      <accept Dcore="Cortex-M3"/>
      <accept Dcore="Cortex-M4"/>
      <accept Dcore="Cortex-M7"/>
      <accept Dcore="Cortex-M33"/>
      <accept Dcore="Cortex-M55"/>
      <accept Dcore="Cortex-M85"/>
    </condition>
  </conditions>
  <components>
    <component Cclass="Machine Learning" Cgroup="Training" Csub="@name@"
               Cversion="@version@" condition="Cortex-M">
      <description>@sentence@</description>
      <files>
@files@
      </files>
    </component>
  </components>
</package>
"""
_BEFORE = """\
/* Trains a network that lives in a store of yours, and tells the loss of each step. */
#include "@name@.h"

/* The project's: each gives 0 if all went well. Offsets and counts are multiples of 512. */
int store_open(void);
int store_read(uint32_t offset, void *to, uint32_t count);
int store_write(uint32_t offset, const void *from, uint32_t count);
void console_say(uint32_t step, float loss, const char *text);

static int read_store(void *user, uint32_t offset, void *to, uint32_t count)
{
    (void)user;
    return store_read(offset, to, count);
}

static int write_store(void *user, uint32_t offset, const void *from, uint32_t count)
{
    (void)user;
    return store_write(offset, from, count);
}

static void say(uint32_t step, float loss)
{
    console_say(step, loss, "trained");
}

"""
_AFTER = """
int main(void)
{
    enum poet_error error = store_open() == 0 ? train() : POET_ERROR_READ;
    console_say(0, 0.0f, error == POET_OK ? "done" : poet_error_text(error));
    for (;;) {
    }
}
"""
