//! Request metadata in one compact block, and the headers gRPC itself reads.
//!
//! A call may stay open for minutes (long polling), a hundred thousand of them at once: the block costs its
//! bytes and nothing else, and is dropped without walking a map.

use crate::frame::Encoding;
use http::HeaderMap;
use std::time::Duration;

const LENGTH_BYTES: usize = 4;

/// Names and values as they came, in order: (u32 length, bytes) twice per header.
#[derive(Clone, Debug, Default)]
pub struct Metadata(Box<[u8]>);

impl Metadata {
    /// Pack what a request brought, without what only the transport needs.
    pub fn new(headers: &HeaderMap) -> Self {
        let mut block = Vec::with_capacity(
            headers.iter().map(|(n, v)| 2 * LENGTH_BYTES + n.as_str().len() + v.len()).sum(),
        );
        for (name, value) in headers {
            if matches!(
                name.as_str(),
                "te" | "content-type" | "grpc-timeout" | "grpc-encoding" | "grpc-accept-encoding"
            ) {
                continue;
            }
            for part in [name.as_str().as_bytes(), value.as_bytes()] {
                // The limit of the header list has 32 bits, so that none is longer.
                let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
                block.extend_from_slice(&length.to_be_bytes());
                block.extend_from_slice(part);
            }
        }
        Self(block.into_boxed_slice())
    }

    /// Names and values in the order they came.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || Some((part(&mut rest)?, part(&mut rest)?)))
    }

    /// The last value of a name.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().filter(|(key, _)| *key == name).last().map(|(_, value)| value)
    }

    /// Bytes held.
    pub fn size(&self) -> usize {
        self.0.len()
    }
}

fn part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, tail) = rest.split_first_chunk::<LENGTH_BYTES>()?;
    let (value, tail) = tail.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    *rest = tail;
    Some(value)
}

/// `grpc-timeout`: at most eight digits and a unit.
pub fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// `grpc-encoding`; None for one we do not know.
pub fn encoding(headers: &HeaderMap) -> Option<Encoding> {
    match headers.get("grpc-encoding").map(http::HeaderValue::as_bytes) {
        None | Some(b"identity") => Some(Encoding::Identity),
        Some(b"gzip") => Some(Encoding::Gzip),
        Some(_) => None,
    }
}

/// Whether the content type is gRPC's.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get("content-type") else { return false };
    let Some(rest) = value.as_bytes().strip_prefix(b"application/grpc") else { return false };
    matches!(rest.first(), None | Some(b'+' | b';'))
}

/// A text as `grpc-message` carries it: printable ASCII, the rest as %XX of its UTF-8; what comes to more than
/// `limit` bytes is cut between two characters.
pub fn percent_encoded(text: &str, limit: usize) -> String {
    use std::fmt::Write;
    const CUT: &str = "...";
    let mut encoded = String::with_capacity(text.len().min(limit));
    for character in text.chars() {
        let whole = encoded.len();
        for byte in character.encode_utf8(&mut [0; 4]).bytes() {
            if (0x20..0x7f).contains(&byte) && byte != b'%' {
                encoded.push(char::from(byte));
            } else {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
        if encoded.len() > limit {
            encoded.truncate(whole);
            encoded.push_str(CUT);
            break;
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn with(name: &'static str, value: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_static(value));
        headers
    }

    #[test]
    fn of_a_repeated_name_the_last_value_counts() {
        let mut headers = with("a", "1");
        headers.append("a", HeaderValue::from_static("2"));
        headers.insert("te", HeaderValue::from_static("trailers"));
        let metadata = Metadata::new(&headers);
        assert_eq!(metadata.get(b"a"), Some(&b"2"[..]));
        assert_eq!(metadata.get(b"te"), None);
        assert_eq!(metadata.iter().count(), 2);
    }

    #[test]
    fn a_header_may_be_as_long_as_the_limits_allow() {
        let mut headers = with("after", "2");
        let long = "v".repeat(100_000);
        headers.insert("long", HeaderValue::from_str(&long).unwrap_or(HeaderValue::from_static("")));
        let metadata = Metadata::new(&headers);
        assert_eq!(metadata.get(b"long"), Some(long.as_bytes()));
        assert_eq!((metadata.get(b"after"), metadata.iter().count()), (Some(&b"2"[..]), 2));
    }

    #[test]
    fn timeouts_of_every_unit_are_read_and_others_ignored() {
        for (text, millis) in
            [("1H", 3_600_000), ("2M", 120_000), ("3S", 3_000), ("4m", 4), ("5000u", 5), ("6000000n", 6)]
        {
            assert_eq!(timeout(&with("grpc-timeout", text)), Some(Duration::from_millis(millis)));
        }
        for text in ["", "S", "123456789S", "-1S", "1", "1x", "1.5S", "99999999999999999999H", "\u{1}"] {
            let mut headers = HeaderMap::new();
            let Ok(value) = HeaderValue::from_str(text) else { continue };
            headers.insert("grpc-timeout", value);
            assert_eq!(timeout(&headers), None, "{text}");
        }
        assert_eq!(
            timeout(&with("grpc-timeout", "99999999H")),
            Some(Duration::from_secs(99_999_999 * 3_600))
        );
    }

    #[test]
    fn only_the_content_types_of_grpc_are_taken() {
        for good in ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"] {
            assert!(is_grpc(&with("content-type", good)));
        }
        for bad in ["application/grpc-web", "application/json", "text/plain", ""] {
            assert!(!is_grpc(&with("content-type", bad)));
        }
    }

    #[test]
    fn a_status_text_survives_as_ascii() {
        assert_eq!(percent_encoded("5% für\n", 100), "5%25 f%C3%BCr%0A");
        assert_eq!(percent_encoded("5% für\n", 16), "5%25 f%C3%BCr%0A");
        assert_eq!(percent_encoded("5% für\n", 10), "5%25 f...");
    }
}
