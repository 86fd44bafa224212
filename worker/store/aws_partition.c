#include "worker/store/aws_partition.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

/* By botocore's endpoints.json. */
static const struct {
    const char *begin, *domain; /* of the names of its regions; "": of all others */
} partitions[] = {
    {"cn-", "amazonaws.com.cn"},    {"us-iso-", "c2s.ic.gov"},      {"us-isob-", "sc2s.sgov.gov"},
    {"us-isof-", "csp.hci.ic.gov"}, {"eu-isoe-", "cloud.adc-e.uk"}, {"eusc-", "amazonaws.eu"},
    {"", "amazonaws.com"},
};

#define COUNT (sizeof partitions / sizeof *partitions)

const char *mr_aws_domain(const char *region)
{
    size_t i = 0;
    while (i + 1 < COUNT && (!region || strncmp(region, partitions[i].begin, strlen(partitions[i].begin)) != 0))
        i++;
    return partitions[i].domain;
}

bool mr_aws_is_host(const char *host)
{
    size_t length = strlen(host);
    for (size_t i = 0; i < COUNT; i++) {
        size_t n = strlen(partitions[i].domain);
        if (length > n && host[length - n - 1] == '.' && strcasecmp(host + length - n, partitions[i].domain) == 0)
            return true;
    }
    return false;
}
