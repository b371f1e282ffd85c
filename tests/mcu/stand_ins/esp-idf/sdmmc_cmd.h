/* Of ESP-IDF what the example names: enough to compile it, no more. */
#include <stddef.h>
#include <stdint.h>

typedef int esp_err_t;
enum { ESP_OK = 0 };
typedef struct {
    int slot;
} sdmmc_host_t;
typedef struct {
    int ocr;
} sdmmc_card_t;
esp_err_t sdmmc_card_init(const sdmmc_host_t *host, sdmmc_card_t *card);
esp_err_t sdmmc_read_sectors(sdmmc_card_t *card, void *to, size_t first, size_t count);
esp_err_t sdmmc_write_sectors(sdmmc_card_t *card, const void *from, size_t first, size_t count);
void app_main(void);
