/* aws_partition.h - AWS's partitions: the domain of a region's services, and which hosts are AWS's. */
#ifndef MR_WORKER_STORE_AWS_PARTITION_H
#define MR_WORKER_STORE_AWS_PARTITION_H

#include <stdbool.h>

/* The domain of a region's services, "amazonaws.com" for most. So it is for NULL and unknown regions. */
const char *mr_aws_domain(const char *region);
/* Whether a host ("s3.us-east-1.amazonaws.com", without a port) is below the domain of a partition. */
bool mr_aws_is_host(const char *host);

#endif
