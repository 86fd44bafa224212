/* aws_partition.h - AWS's partitions: which domain the services of a region are below, and which hosts are AWS's. */
#ifndef MR_WORKER_STORE_AWS_PARTITION_H
#define MR_WORKER_STORE_AWS_PARTITION_H

#include <stdbool.h>

/* The domain of a region's services, "amazonaws.com" for most. A region of no known partition, and NULL, have that too. */
const char *mr_aws_domain(const char *region);
/* Whether a host ("s3.us-east-1.amazonaws.com", without a port) is below the domain of a partition. */
bool mr_aws_is_host(const char *host);

#endif
