typedef struct {
    int mosi_io_num, miso_io_num, sclk_io_num, quadwp_io_num, quadhd_io_num;
} spi_bus_config_t;
enum { SDSPI_DEFAULT_DMA = 3 };
int spi_bus_initialize(int host, const spi_bus_config_t *bus, int dma);
