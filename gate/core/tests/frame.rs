//! The frame reader against every cut, every forgery, and a reader that is obviously right.

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use gate_core::frame::{Decompressor, Encoding, FrameError, FrameReader, Message, framed_all};
use proptest::collection::vec;
use proptest::prelude::*;
use std::io::Write;

const LIMIT: usize = 1_000;

/// All messages of the chunks, or the first error.
fn read(chunks: &[Vec<u8>], encoding: Encoding) -> Result<Vec<Message>, FrameError> {
    let mut reader = FrameReader::new(LIMIT, encoding);
    let mut messages = Vec::new();
    for chunk in chunks {
        reader.push(Bytes::copy_from_slice(chunk));
        while let Some(message) = reader.next_message()? {
            messages.push(message);
        }
        assert!(reader.buffered() <= LIMIT, "nothing is held beyond the one message that is not complete");
    }
    reader.finish()?;
    Ok(messages)
}

/// The same from the whole text, the plain way.
fn read_plainly(mut text: &[u8], encoding: Encoding) -> Result<Vec<Message>, FrameError> {
    let mut messages = Vec::new();
    while let Some((header, rest)) = text.split_first_chunk::<5>() {
        let [flag, length @ ..] = *header;
        let length = u32::from_be_bytes(length) as usize;
        match (flag, encoding) {
            (0, _) | (1, Encoding::Gzip) => {}
            (1, Encoding::Identity) => return Err(FrameError::NotEncoded),
            _ => return Err(FrameError::UnknownFlag(flag)),
        }
        if length > LIMIT {
            return Err(FrameError::TooLarge { bytes: length as u64, limit: LIMIT as u64 });
        }
        let Some((message, rest)) = rest.split_at_checked(length) else { return Err(FrameError::Truncated) };
        messages.push(Message { bytes: Bytes::copy_from_slice(message), compressed: flag == 1 });
        text = rest;
    }
    if text.is_empty() { Ok(messages) } else { Err(FrameError::Truncated) }
}

/// Cut a text at these places, wherever they are.
fn cut(text: &[u8], places: &[prop::sample::Index]) -> Vec<Vec<u8>> {
    let mut places: Vec<usize> = places.iter().map(|place| place.index(text.len() + 1)).collect();
    places.sort_unstable();
    let mut chunks = Vec::new();
    let mut rest = text;
    let mut at = 0;
    for place in places {
        let (chunk, tail) = rest.split_at(place - at);
        chunks.push(chunk.to_vec());
        (rest, at) = (tail, place);
    }
    chunks.push(rest.to_vec());
    chunks
}

/// Frames that are mostly right: a few bytes of flag and length forged.
fn forged() -> impl Strategy<Value = Vec<u8>> {
    let flag = prop_oneof![8 => Just(0u8), 2 => Just(1u8), 1 => any::<u8>()];
    let lie = prop_oneof![12 => Just(0i64), 1 => -3i64..1_500, 1 => any::<u32>().prop_map(i64::from)];
    let frame = (flag, lie, vec(any::<u8>(), 0..40)).prop_map(|(flag, lie, message)| {
        let said = i64::try_from(message.len()).unwrap_or(0).saturating_add(lie);
        let length = u32::try_from(said.clamp(0, i64::from(u32::MAX))).unwrap_or(0);
        let mut frame = vec![flag];
        frame.extend(length.to_be_bytes());
        frame.extend(message);
        frame
    });
    vec(frame, 0..8).prop_map(|frames| frames.concat())
}

proptest! {
    // 25,000 texts of four frames and more: over 100,000 frames a run.
    #![proptest_config(ProptestConfig { cases: 25_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_cut_anywhere_read_as_if_whole(text in forged(), places in vec(any::<prop::sample::Index>(), 0..12),
                                            gzip in any::<bool>()) {
        let encoding = if gzip { Encoding::Gzip } else { Encoding::Identity };
        prop_assert_eq!(read(&cut(&text, &places), encoding), read_plainly(&text, encoding));
    }

    #[test]
    fn noise_is_an_error_or_messages_and_never_a_panic(chunks in vec(vec(any::<u8>(), 0..64), 0..8)) {
        prop_assert_eq!(read(&chunks, Encoding::Gzip), read_plainly(&chunks.concat(), Encoding::Gzip));
    }

    #[test]
    fn what_is_framed_is_read_back(messages in vec(vec(any::<u8>(), 0..200), 0..10),
                                   places in vec(any::<prop::sample::Index>(), 0..10)) {
        let text = framed_all(messages.iter().map(Vec::as_slice));
        let back = read(&cut(&text, &places), Encoding::Identity).map(
            |read| read.into_iter().map(|message| message.bytes.to_vec()).collect::<Vec<_>>());
        prop_assert_eq!(back, Ok(messages));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn noise_decompresses_to_an_error_or_within_the_limit(text in vec(any::<u8>(), 0..300), good in any::<bool>()) {
        let text = if good { zipped(&text) } else { text };
        let mut decompressor = Decompressor::new(text.into(), LIMIT);
        while let Ok(false) = decompressor.step() {}
        prop_assert!(decompressor.len() <= LIMIT + 1);
    }
}

fn zipped(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).and_then(|()| encoder.finish()).unwrap_or_default()
}

fn unzipped(text: Vec<u8>, limit: usize) -> Result<Bytes, FrameError> {
    let mut decompressor = Decompressor::new(text.into(), limit);
    while !decompressor.step()? {}
    Ok(decompressor.finish())
}

#[test]
fn a_message_is_decompressed_up_to_the_limit_and_not_beyond() {
    let text = vec![7; 1 << 20];
    assert_eq!(unzipped(zipped(&text), 1 << 20), Ok(Bytes::from(text.clone())));
    assert!(matches!(unzipped(zipped(&text), (1 << 20) - 1), Err(FrameError::TooLarge { .. })));
    assert_eq!(unzipped(zipped(&[]), 0), Ok(Bytes::new()));
    assert_eq!(unzipped(b"plain".to_vec(), 100), Err(FrameError::Corrupt));
    assert_eq!(unzipped([zipped(b"one"), zipped(b"two")].concat(), 100), Err(FrameError::Corrupt));
}

#[test]
fn a_length_costs_nothing_until_its_bytes_come() {
    let mut reader = FrameReader::new(1 << 31, Encoding::Identity);
    reader.push(Bytes::from_static(&[0, 0x7f, 0xff, 0xff, 0xff, 1]));
    assert_eq!(reader.next_message(), Ok(None));
    assert_eq!(reader.buffered(), 1);
}

#[test]
fn a_step_of_decompression_is_short_however_little_comes_out() {
    let head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff".to_vec();
    let empty_blocks = b"\0\0\0\xff\xff".repeat(200_000);
    let end = b"\x01\0\0\xff\xff\0\0\0\0\0\0\0\0".to_vec();
    let mut decompressor = Decompressor::new([head, empty_blocks, end].concat().into(), 100);
    let steps =
        std::iter::from_fn(|| decompressor.step().ok()).take_while(|is_complete| !is_complete).count();
    assert!((100..1_000).contains(&steps), "{steps} steps for a million bytes");
    assert_eq!(decompressor.finish(), Bytes::new());
}
