#include "ops/device.h"

void device_free(struct device *d) {
    if (d != NULL) d->destroy(d);
}
