/* fuzz_xml.c - what a server may send as XML: answers of multipart uploads. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "fuzz.h"
#include "worker/store/xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mr_xml *xml = mr_xml_parse((const char *)data, size);
    if (!xml) {
        if (mr_error_text()[0] == 0)
            abort();
        return 0;
    }
    struct mr_xml_leaf leaf;
    for (size_t i = 0; mr_xml_leaf(xml, i, &leaf); i++)
        if (leaf.depth < 1 || leaf.depth > 2 || strlen(leaf.name) > size || strlen(leaf.text) > size ||
            mr_xml_seconds(leaf.text) < INT64_MIN / 2)
            abort();
    if (mr_xml_root(xml)[0] == 0 || strlen(mr_xml_text(xml, "UploadId")) > size)
        abort();
    struct mr_store_pending_page page;
    if (mr_xml_pending(xml, &page) == 0) {
        for (size_t i = 0; i < page.count; i++) {
            if (page.items[i].name_length == 0 || strlen(page.items[i].name) != page.items[i].name_length ||
                page.items[i].id[0] == 0)
                abort();
        }
        if (page.next_name && (page.next_name[0] == 0 || !page.next_id))
            abort();
    }
    mr_xml_destroy(xml);
    return 0;
}

size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const char *const seeds[] = {
        "<?xml version='1.0' encoding='UTF-8'?><InitiateMultipartUploadResult "
        "xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
        "<Bucket>b</Bucket><Key>k</Key><UploadId>ABP</UploadId></InitiateMultipartUploadResult>",
        "<ListMultipartUploadsResult><Upload><Key>a&amp;b</Key><UploadId>1</UploadId><Initiated>2026-01-02T03:04:05.6Z"
        "</Initiated></Upload><Upload><Key>c</Key><UploadId>2</UploadId></Upload><IsTruncated>true</IsTruncated>"
        "<NextKeyMarker>c</NextKeyMarker><NextUploadIdMarker>2</NextUploadIdMarker></ListMultipartUploadsResult>",
        "<ListMultipartUploadsResult><EncodingType>url</EncodingType><Upload><Key>a%2Fb+c%zz</Key><UploadId>1</"
        "UploadId>"
        "</Upload></ListMultipartUploadsResult>",
        "<Error><Code>NoSuchBucket</Code><Message>The bucket does not exist.</Message></Error>",
        "<ListMultipartUploadsResult><Upload><Key>a</Key></Upload></ListMultipartUploadsResult>",
        "<ListMultipartUploadsResult><Upload><UploadId>1</UploadId></Upload></ListMultipartUploadsResult>",
        "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated></ListMultipartUploadsResult>",
        "<a><b><c><d><e><f><g><h><i><j><k><l><m><n><o><p><q/></p></o></n></m></l></k></j></i></h></g></f></e></d></c></"
        "b>"
        "</a>",
        "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>",
    };
    return mr_fuzz_text_seed(seeds, sizeof seeds / sizeof *seeds, n, data);
}
