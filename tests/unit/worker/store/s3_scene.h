/* s3_scene.h - what the tests of S3 share beside store_scene.h: a store on a scripted bucket, and single requests. */
#ifndef MR_TESTS_S3_SCENE_H
#define MR_TESTS_S3_SCENE_H

#include "fault_s3.h"
#include "store_scene.h"

#define BIG     3000000u
#define CHUNK   (1u << 20)
#define PART    300000u
#define SECRETS "a-secret-of-the-tests"

extern unsigned char data[BIG];
extern struct fault_s3 s3;
extern struct mr_transfer_result fetched; /* the last fetch's */
extern const char *s3_bucket;             /* of open_s3; s3_setup makes it "bucket" */
extern bool unverified;                   /* it was so */
extern char listed[4000];                 /* names, each with a "|" behind it */

/* A fixture. */
void s3_setup(void);
void s3_teardown(void);
/* Keys and nothing else of AWS. */
void s3_environment(void);
void open_s3(struct mr_s3_options options, unsigned stall_ms);
void script(const struct bucket_step *steps, size_t count);
void insert(const char *name, uint64_t size, uint64_t match);
void stat_it(const char *name);
/* Into memory that is compared with data. */
void fetch(const char *name, uint64_t size, uint64_t generation, const char *etag);
/* A mr_store_list_fn, which adds to listed. */
void on_page(void *arg, const struct mr_store_result *result, const struct mr_store_page *page);
void list_all(const char *prefix, const char *start, const char *end);
/* The last request of op had this in its head. */
bool sent(enum bucket_op op, const char *line);

#endif
