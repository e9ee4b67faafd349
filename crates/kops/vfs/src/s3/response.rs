//! Parses the XML documents in the responses of an S3 server.

use api_meta::Timestamp;
use aws::xml;

use crate::object::ObjectInfo;

/// The largest response that is neither an object nor a listing, in bytes.
pub(super) const LARGEST_DOCUMENT: usize = 64 << 10;
/// The deepest nesting of elements in a response.
const DEEPEST: usize = 8;

/// A page of a listing.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Page {
    pub(super) objects: Vec<ObjectInfo>,
    pub(super) prefixes: Vec<String>,
    /// The continuation token of the next page.
    pub(super) next: Option<String>,
}

/// Returns an empty entry of a listing.
fn empty_entry() -> ObjectInfo {
    let modified = Timestamp::from_unix(0, 0);
    ObjectInfo { name: String::new(), size: 0, modified, tag: String::new() }
}

impl Page {
    /// Parses a listing.
    pub(super) fn read(text: &[u8]) -> Result<Self, &'static str> {
        let (mut page, mut is_cut, mut is_encoded) = (Self::default(), false, false);
        let mut root = false;
        let mut object = empty_entry();
        xml::elements(text, DEEPEST, |path, text| match path {
            [own] => root = own == "ListBucketResult",
            [_, own] if own == "IsTruncated" => is_cut = text == "true",
            [_, own] if own == "EncodingType" => is_encoded = text == "url",
            [_, own] if own == "NextContinuationToken" => page.next = Some(text.to_owned()),
            [_, of, own] if of == "Contents" => match own.as_str() {
                "Key" => text.clone_into(&mut object.name),
                "Size" => object.size = text.parse().unwrap_or(0),
                "ETag" => text.clone_into(&mut object.tag),
                "LastModified" => object.modified = text.parse().unwrap_or(object.modified),
                _ => {}
            },
            [_, own] if own == "Contents" => {
                page.objects.push(std::mem::replace(&mut object, empty_entry()));
            }
            [_, of, own] if of == "CommonPrefixes" && own == "Prefix" => {
                page.prefixes.push(text.to_owned());
            }
            _ => {}
        })?;
        if !root {
            return Err("it is not a listing");
        }
        if is_encoded {
            let keys = page.objects.iter_mut().map(|object| &mut object.name);
            for key in keys.chain(&mut page.prefixes) {
                *key = api_meta::query_decode(key).ok_or("a key has a broken escape")?;
            }
        }
        match (is_cut, &page.next) {
            (true, None) => Err("it is truncated, but has no continuation token"),
            (true, Some(_)) => Ok(page),
            (false, _) => Ok(Self { next: None, ..page }),
        }
    }
}

/// Returns the code and the message of an error response.
pub(super) fn error_of(text: &[u8]) -> (String, String) {
    let (mut code, mut message) = (String::new(), String::new());
    // Of a broken response, use the part before the break.
    let _ = xml::elements(text, DEEPEST, |path, text| match path {
        [root, own] if root == "Error" && own == "Code" => text.clone_into(&mut code),
        [root, own] if root == "Error" && own == "Message" => text.clone_into(&mut message),
        _ => {}
    });
    let plain = |text: String| text.chars().filter(|c| !c.is_control()).take(500).collect();
    (plain(code), plain(message))
}

/// Reports whether a bucket's settings name a default encryption.
pub(super) fn encrypts(text: &[u8]) -> bool {
    let mut found = false;
    let read = xml::elements(text, DEEPEST, |path, _| {
        found |= path.last().is_some_and(|own| own == "ApplyServerSideEncryptionByDefault");
    });
    found && read.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
        <Name>b</Name><IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b&#33;</NextContinuationToken>\
        <EncodingType>url</EncodingType><Contents><Key>x/a%2Bb+c</Key><ETag>&quot;t&quot;</ETag><Size>12</Size><LastModified>2026-11-23T10:00:00.000Z</LastModified></Contents>\
        <CommonPrefixes><Prefix>x/d/</Prefix></CommonPrefixes><Contents><Key/></Contents></ListBucketResult>";

    #[test]
    fn parses_keys_and_continuation_token() {
        let page = Page::read(WHOLE.as_bytes()).unwrap();
        let modified = "2026-11-23T10:00:00Z".parse().unwrap();
        let (first, second) = (&page.objects[0], &page.objects[1]);
        assert_eq!(
            *first,
            ObjectInfo { name: "x/a+b c".to_owned(), size: 12, modified, tag: "\"t\"".to_owned() }
        );
        assert_eq!(*second, empty_entry());
        assert_eq!((page.prefixes, page.next), (vec!["x/d/".to_owned()], Some("a&b!".to_owned())));
        let last = Page::read(WHOLE.replace("true", "false").as_bytes()).unwrap();
        assert_eq!(last.next, None);
    }

    #[test]
    fn rejects_truncated_and_hostile_listings() {
        for length in 0..WHOLE.len() {
            assert!(Page::read(&WHOLE.as_bytes()[..length]).is_err(), "{length}");
        }
        let bomb = "<!DOCTYPE a [<!ENTITY b \"bbbb\">]><ListBucketResult>&b;</ListBucketResult>";
        for text in [
            bomb,
            "<ListBucketResult>&b;</ListBucketResult>",
            "<Error><Code>SlowDown</Code></Error>",
            "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            "<ListBucketResult></Other></ListBucketResult>",
            "<ListBucketResult/><ListBucketResult/>",
            &format!("<ListBucketResult>{}", "<a>".repeat(100_000)),
            &WHOLE.replace("%2B", "%zz"),
        ] {
            assert!(Page::read(text.as_bytes()).is_err(), "{text:.80}");
        }
    }

    #[test]
    fn parses_code_and_message_of_an_error() {
        let text = b"<Error><Code>NoSuchKey</Code><Message>it is\n not there</Message></Error>";
        assert_eq!(error_of(text), ("NoSuchKey".to_owned(), "it is not there".to_owned()));
        assert_eq!(error_of(b"<html>"), (String::new(), String::new()));
        assert!(encrypts(b"<S><Rule><ApplyServerSideEncryptionByDefault/></Rule></S>"));
        assert!(!encrypts(b"<S><Rule><BucketKeyEnabled/></Rule></S>"));
    }

    #[test]
    fn damaged_answers_are_rejected_or_parsed() {
        let page: &[u8] = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>\
            <Contents><Key>a/b%20c</Key><ETag>&quot;x&quot;</ETag><Size>5</Size></Contents>\
            <CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes><EncodingType>url</EncodingType></ListBucketResult>";
        let error: &[u8] = b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>";
        fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "s3-answers", &[page, error], |input| {
            let _ = (error_of(input), Page::read(input).is_ok(), encrypts(input));
        });
    }
}
