/* test_aws_partition.c - regions and hosts of each partition of AWS. */
#include <check.h>
#include <stdio.h>

#include "tests/unit/suite.h"
#include "worker/store/aws_partition.h"

static const struct {
    const char *region, *domain;
} regions[] = {
    {"us-east-1", "amazonaws.com"},        {NULL, "amazonaws.com"},
    {"us-gov-west-1", "amazonaws.com"},    {"cn-north-1", "amazonaws.com.cn"},
    {"us-iso-east-1", "c2s.ic.gov"},       {"us-isob-east-1", "sc2s.sgov.gov"},
    {"us-isof-south-1", "csp.hci.ic.gov"}, {"eu-isoe-west-1", "cloud.adc-e.uk"},
    {"eusc-de-east-1", "amazonaws.eu"},
};

START_TEST(a_region_s_services_are_aws_s)
{
    char host[100];
    ck_assert_str_eq(mr_aws_domain(regions[_i].region), regions[_i].domain);
    snprintf(host, sizeof host, "bucket.s3.%s.%s", regions[_i].region ? regions[_i].region : "us-east-1",
             regions[_i].domain);
    ck_assert(mr_aws_is_host(host));
}
END_TEST

START_TEST(other_hosts_are_not)
{
    static const char *const hosts[] = {"amazonaws.com",
                                        "s3.amazonaws.com.example.org",
                                        "s3.notamazonaws.com",
                                        "storage.googleapis.com",
                                        "localhost",
                                        "",
                                        "127.0.0.1"};
    for (unsigned i = 0; i < sizeof hosts / sizeof *hosts; i++)
        ck_assert_msg(!mr_aws_is_host(hosts[i]), "%s", hosts[i]);
    ck_assert(mr_aws_is_host("S3.US-EAST-1.AMAZONAWS.COM"));
}
END_TEST

int main(void)
{
    TCase *all = tcase_create("aws_partition");
    tcase_add_loop_test(all, a_region_s_services_are_aws_s, 0, (int)(sizeof regions / sizeof *regions));
    tcase_add_test(all, other_hosts_are_not);
    return mr_suite_run("aws_partition", all);
}
