/*
 * Listings of directory buckets of S3, whose pages have their names in no order, and which can be filtered by folder
 * only.
 *
 * All callers rely on the order of names. So a listing here has two halves. First the store's pages are collected, each
 * of which is an empty page for the caller (so that it repeats, cancels and counts them like any other). After the last
 * one all names are sorted and delivered in order. Until then they are in this process's memory, some 130 bytes per
 * object.
 *
 * A token names the listing, its step, and the last name that was delivered. If the listing no longer exists (too many
 * were left half-way) it is made anew, and continues after that name.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/container.h"
#include "base/error.h"
#include "worker/store/s3_impl.h"

#define LISTINGS   8    /* that are kept although their callers have not come for the rest */
#define PAGE       8192 /* names in a page that is delivered */
#define TOKEN_SIZE 1100

struct entry {
    size_t name; /* its offset in the listing's strings; its ETag follows it */
    uint64_t size;
    int64_t created_s;
    size_t class;
    uint32_t name_length;
};

struct s3_sorted {
    struct s3_sorted *next; /* most recently used first */
    uint64_t number;
    uint64_t step;        /* of the page that comes next */
    bool used;            /* by a call that is under way, or at its end */
    struct mr_text after; /* it lists the names after this one; empty: as its caller says */
    struct mr_text from;  /* the store's token of its next page; empty: the first */
    struct mr_text strings;
    struct entry *entries;
    size_t count, room;
    bool whole;    /* all pages have come, and the names are sorted */
    size_t at;     /* the next entry to deliver, when it is whole */
    int64_t now_s; /* the store's clock when its last page came */
    char token[TOKEN_SIZE];
};

/* ---- the listings of a store ---- */

static void s3_sorted_forget(struct s3_store *store, struct s3_sorted *listing)
{
    struct s3_sorted **at = &store->sorted;
    while (*at != listing)
        at = &(*at)->next;
    *at = listing->next;
    mr_text_close(&listing->after);
    mr_text_close(&listing->from);
    mr_text_close(&listing->strings);
    free(listing->entries);
    free(listing);
}

/* Forgets listings whose callers have not come back, but for the LISTINGS most recent ones. */
static void forget_old(struct s3_store *store)
{
    unsigned kept = 0;
    for (struct s3_sorted *at = store->sorted, *next; at; at = next) {
        next = at->next;
        if (!at->used && ++kept > LISTINGS)
            s3_sorted_forget(store, at);
    }
}

void mr_s3_sorted_close(struct s3_store *store)
{
    while (store->sorted)
        s3_sorted_forget(store, store->sorted);
}

void mr_s3_sorted_leave(struct s3_call *call)
{
    call->sorted->used = false;
    call->sorted = NULL;
}

/* The token's listing, which becomes the first; NULL: it no longer exists. *last: the name after which the token
 * continues, or "". */
static struct s3_sorted *s3_sorted_find(struct s3_store *store, const char *token, const char **last)
{
    uint64_t number = 0, step = 0;
    int length = 0;
    *last = "";
    if (!token || sscanf(token, "%" SCNu64 ".%" SCNu64 ".%n", &number, &step, &length) != 2 || length == 0)
        return NULL;
    *last = token + length;
    struct s3_sorted **at = &store->sorted;
    while (*at && ((*at)->number != number || (*at)->step != step || (*at)->used))
        at = &(*at)->next;
    struct s3_sorted *found = *at;
    if (found) {
        *at = found->next;
        found->next = store->sorted;
        store->sorted = found;
    }
    return found;
}

/* after: the name after which it begins, or "". NULL with mr_error. */
static struct s3_sorted *s3_sorted_begin(struct s3_store *store, const char *after)
{
    struct s3_sorted *listing = calloc(1, sizeof *listing);
    if (listing)
        mr_text_puts(&listing->after, after);
    if (!listing || listing->after.failed) {
        free(listing);
        mr_error_set(MR_E_NO_MEMORY, "no memory for a listing");
        return NULL;
    }
    listing->number = ++store->listings;
    listing->next = store->sorted;
    store->sorted = listing;
    return listing;
}

/* ---- collecting ---- */

/* -1: no memory; mr_error is not set. */
static int s3_sorted_add(struct s3_sorted *listing, const struct mr_store_item *item)
{
    if (listing->count == listing->room) {
        size_t room = listing->room ? listing->room + listing->room / 2 : 1024;
        struct entry *entries = realloc(listing->entries, room * sizeof *entries);
        if (!entries)
            return -1;
        listing->entries = entries;
        listing->room = room;
    }
    const struct entry *before = listing->count ? &listing->entries[listing->count - 1] : NULL;
    struct entry *entry = &listing->entries[listing->count++];
    *entry =
        (struct entry){.size = item->size, .created_s = item->created_s, .name_length = (uint32_t)item->name_length};
    entry->class = before ? before->class : listing->strings.length;
    if (!before || strcmp(listing->strings.data + before->class, item->storage_class) != 0) {
        entry->class = listing->strings.length;
        mr_text_add(&listing->strings, item->storage_class, strlen(item->storage_class) + 1);
    }
    entry->name = listing->strings.length;
    mr_text_add(&listing->strings, item->name, item->name_length + 1);
    mr_text_add(&listing->strings, item->etag, strlen(item->etag) + 1);
    return listing->strings.failed ? -1 : 0;
}

/* By name; the same name in the order in which it came. */
static int s3_sorted_compare(const void *a, const void *b, void *strings)
{
    const struct entry *left = a, *right = b;
    int order = strcmp((char *)strings + left->name, (char *)strings + right->name);
    return order ? order : (left->name > right->name) - (left->name < right->name);
}

/* Sorts the names. One that came twice, as it may if the object was replaced meanwhile, is kept once, as it came
 * last. */
static void sort(struct s3_sorted *listing)
{
    struct entry *entries = listing->entries;
    const char *strings = listing->strings.data;
    size_t kept = 0;
    if (listing->count > 1)
        qsort_r(entries, listing->count, sizeof *entries, s3_sorted_compare, listing->strings.data);
    for (size_t i = 0; i < listing->count; i++) {
        bool again = kept > 0 && strcmp(strings + entries[kept - 1].name, strings + entries[i].name) == 0;
        entries[again ? kept - 1 : kept++] = entries[i];
    }
    listing->count = kept;
    listing->whole = true;
}

/* ---- giving ---- */

static const char *make_token(struct s3_sorted *listing, const char *last)
{
    snprintf(listing->token, sizeof listing->token, "%" PRIu64 ".%" PRIu64 ".%s", listing->number, ++listing->step,
             last);
    return listing->token;
}

/* Calls back and gives the call back. over: also forgets the listing, but only after the callback, which is given its
 * strings. */
static void s3_sorted_end(struct s3_call *call, const struct s3_answer *answer, const struct mr_store_page *page,
                          bool over)
{
    struct s3_sorted *listing = call->sorted;
    call->sorted = NULL;
    listing->used = over; /* else the callback may request the next page at once */
    call->done.list(call->arg, &answer->result, page);
    if (over)
        s3_sorted_forget(mr_s3_store(call), listing);
    mr_s3_give(call);
}

/* Delivers the next names in order. After the last one the listing is forgotten. */
static void give(struct s3_call *call, struct s3_answer *answer)
{
    struct s3_sorted *listing = call->sorted;
    size_t count = listing->count - listing->at, most = call->list.max_results ? call->list.max_results : PAGE;
    count = count < most ? count : most;
    struct mr_store_item *items = calloc(count + 1, sizeof *items);
    if (!items) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a page of names");
        mr_s3_refuse(call, answer);
        s3_sorted_end(call, answer, NULL, false);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const struct entry *entry = &listing->entries[listing->at + i];
        const char *name = listing->strings.data + entry->name, *etag = name + entry->name_length + 1;
        items[i] = (struct mr_store_item){.name = name,
                                          .name_length = entry->name_length,
                                          .size = entry->size,
                                          .generation = mr_s3_generation(etag),
                                          .storage_class = listing->strings.data + entry->class,
                                          .etag = etag,
                                          .created_s = entry->created_s};
    }
    listing->at += count;
    bool more = listing->at < listing->count;
    const char *token = make_token(listing, count ? items[count - 1].name : "");
    const struct mr_store_page page = {
        .items = items, .count = count, .now_s = listing->now_s, .next_token = more ? token : NULL};
    s3_sorted_end(call, answer, &page, !more);
    free(items);
}

static void give_later(struct mr_http_timer *timer)
{
    struct s3_call *call = MR_CONTAINER_OF(timer, s3_call, timer);
    struct s3_answer answer = {.result = {.code = MR_OK, .text = "", .status = 200}};
    give(call, &answer);
}

/* ---- the store's pages ---- */

/* 0, or -1 with mr_error. */
static int s3_sorted_keep(struct s3_sorted *listing, const struct s3_page *page)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < page->count; i++)
        rc = s3_sorted_add(listing, &page->items[i]);
    mr_text_clear(&listing->from);
    mr_text_puts(&listing->from, page->next ? page->next : "");
    if (rc != 0 || listing->from.failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory to sort a listing of %zu names", listing->count);
        return -1;
    }
    if (!page->next)
        sort(listing);
    return 0;
}

/* Of the page that is asked for; NULL: the first. */
static const char *sent_token(const struct s3_sorted *listing)
{
    return listing->from.length ? listing->from.data : NULL;
}

/* Keeps the names of a page of the store. The caller gets an empty page, unless this was the store's last. */
static void on_page(struct s3_call *call, struct s3_answer *answer)
{
    struct s3_sorted *listing = call->sorted;
    struct s3_page page = {.sent = sent_token(listing)};
    struct mr_xml *xml = NULL;
    bool good = mr_s3_take_page(call, answer, &xml, &page);
    bool broken = good && s3_sorted_keep(listing, &page) != 0;
    if (broken)
        mr_s3_refuse(call, answer);
    free(page.items);
    mr_xml_destroy(xml);
    if (good && !broken && listing->whole) {
        listing->now_s = answer->http->headers.date_s;
        give(call, answer);
        return;
    }
    const struct mr_store_page empty = {.now_s = answer->http->headers.date_s,
                                        .next_token = good && !broken ? make_token(listing, "") : NULL};
    s3_sorted_end(call, answer, good && !broken ? &empty : NULL, broken);
}

static int ask_page(struct s3_call *call)
{
    const struct s3_sorted *listing = call->sorted;
    mr_s3_target(call, "?list-type=2&encoding-type=url");
    mr_s3_put_prefix(call, call->list.prefix);
    mr_s3_parameter(call, "&continuation-token=", sent_token(listing));
    return mr_s3_send(call, &(struct mr_http_request){0}, on_page);
}

int mr_s3_sorted_start(struct s3_call *call)
{
    struct s3_store *store = mr_s3_store(call);
    const char *last;
    struct s3_sorted *listing = s3_sorted_find(store, call->list.page_token, &last);
    if (!listing && !(listing = s3_sorted_begin(store, last)))
        return -1;
    if (listing->after.length)
        call->list.after = listing->after.data;
    listing->used = true;
    call->sorted = listing;
    forget_old(store);
    if (listing->whole) {
        call->timer.run = give_later;
        mr_http_timer_set(store->base.http, &call->timer, 0);
        return 0;
    }
    if (ask_page(call) == 0)
        return 0;
    mr_s3_sorted_leave(call);
    return -1;
}
