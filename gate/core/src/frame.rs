//! gRPC's framing of messages, as a state machine over bytes.
//!
//! ```text
//! ┌──────┬───────────────┬──────────────┐
//! │ flag │ length u32 BE │ length bytes │ …   flag 1: the message is compressed
//! └──────┴───────────────┴──────────────┘
//! ```
//!
//! Chunks come in any size, cut anywhere. A message that lies whole in a chunk is a slice of it; one that
//! does not is copied once. A length is only believed as far as bytes have come, so that a header of five
//! bytes costs five bytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::bufread::GzDecoder;
use std::fmt;
use std::io::{self, BufRead, Read};

/// Bytes before each message.
pub const HEADER_BYTES: usize = 5;
const DECOMPRESS_STEP_BYTES: usize = 256 << 10;
/// Of what is compressed: blocks may be empty, so that what comes out of them bounds nothing.
const COMPRESSED_STEP_BYTES: usize = 2 << 10;

/// What compressed messages of a stream are compressed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Nothing.
    Identity,
    /// gzip.
    Gzip,
}

/// Why bytes are not gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// A message larger than the limit.
    TooLarge {
        /// What the frame or the decompressed message came to.
        bytes: u64,
        /// What is allowed.
        limit: u64,
    },
    /// A flag that is neither 0 nor 1.
    UnknownFlag(u8),
    /// A compressed message on a stream that named no encoding.
    NotEncoded,
    /// A compressed message that is not one whole gzip stream.
    Corrupt,
    /// The stream ended inside a message.
    Truncated,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { bytes, limit } => {
                write!(
                    f,
                    "message of {bytes} bytes is larger than the limit of {limit} bytes (message_bytes)"
                )
            }
            Self::UnknownFlag(flag) => write!(f, "message flag {flag} is neither 0 nor 1"),
            Self::NotEncoded => write!(f, "compressed message without a grpc-encoding"),
            Self::Corrupt => write!(f, "compressed message is not one valid gzip stream"),
            Self::Truncated => write!(f, "the stream ended inside a message"),
        }
    }
}

/// One message as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its bytes, compressed if `compressed`.
    pub bytes: Bytes,
    /// Whether it must be decompressed first.
    pub compressed: bool,
}

/// Cuts a stream of chunks into messages.
#[derive(Debug)]
pub struct FrameReader {
    limit: usize,
    encoding: Encoding,
    chunk: Bytes,
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    partial: BytesMut,
}

impl FrameReader {
    /// A reader for messages of up to `limit` bytes.
    pub fn new(limit: usize, encoding: Encoding) -> Self {
        Self {
            limit,
            encoding,
            chunk: Bytes::new(),
            header: [0; HEADER_BYTES],
            header_bytes: 0,
            partial: BytesMut::new(),
        }
    }

    /// Give the next bytes of the stream.
    pub fn push(&mut self, chunk: Bytes) {
        if self.chunk.is_empty() {
            self.chunk = chunk;
        } else {
            let mut joined = BytesMut::with_capacity(self.chunk.len() + chunk.len());
            joined.put(std::mem::take(&mut self.chunk));
            joined.put(chunk);
            self.chunk = joined.freeze();
        }
    }

    /// The next whole message, if it is there. After an error the stream cannot be read on.
    pub fn next_message(&mut self) -> Result<Option<Message>, FrameError> {
        if !self.read_header() {
            return Ok(None);
        }
        let [flag, a, b, c, d] = self.header;
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        match (flag, self.encoding) {
            (0, _) | (1, Encoding::Gzip) => {}
            (1, Encoding::Identity) => return Err(FrameError::NotEncoded),
            (flag, _) => return Err(FrameError::UnknownFlag(flag)),
        }
        if length > self.limit {
            return Err(FrameError::TooLarge { bytes: length as u64, limit: self.limit as u64 });
        }
        let bytes = if self.partial.is_empty() && self.chunk.len() >= length {
            self.chunk.split_to(length)
        } else {
            let missing = length.saturating_sub(self.partial.len()).min(self.chunk.len());
            self.partial.put(self.chunk.split_to(missing));
            if self.partial.len() < length {
                return Ok(None);
            }
            std::mem::take(&mut self.partial).freeze()
        };
        self.header_bytes = 0;
        Ok(Some(Message { bytes, compressed: flag == 1 }))
    }

    /// Whether the header of a message is complete.
    fn read_header(&mut self) -> bool {
        while self.header_bytes < HEADER_BYTES && self.chunk.has_remaining() {
            if let Some(byte) = self.header.get_mut(self.header_bytes) {
                *byte = self.chunk.get_u8();
            }
            self.header_bytes += 1;
        }
        self.header_bytes == HEADER_BYTES
    }

    /// Whether no message has begun.
    pub fn is_between(&self) -> bool {
        self.header_bytes == 0 && self.chunk.is_empty()
    }

    /// Bytes held of a message that is not complete.
    pub fn buffered(&self) -> usize {
        self.partial.len() + self.chunk.len()
    }

    /// Say whether the stream may end here.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.is_between() { Ok(()) } else { Err(FrameError::Truncated) }
    }
}

/// Bytes of which a step gets so many and the next one more.
struct Ration {
    bytes: Bytes,
    left: usize,
}

impl Read for Ration {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for Ration {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.left == 0 && self.bytes.has_remaining() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (now, _) = self.bytes.split_at(self.left.min(self.bytes.len()));
        Ok(now)
    }

    fn consume(&mut self, count: usize) {
        self.bytes.advance(count.min(self.bytes.len()));
        self.left = self.left.saturating_sub(count);
    }
}

/// Decompresses one message step by step, so that a large one does not hold up others.
pub struct Decompressor {
    decoder: GzDecoder<Ration>,
    limit: usize,
    output: Vec<u8>,
}

impl Decompressor {
    /// Begin with a compressed message.
    pub fn new(compressed: Bytes, limit: usize) -> Self {
        let ration = Ration { bytes: compressed, left: 0 };
        Self { decoder: GzDecoder::new(ration), limit, output: Vec::new() }
    }

    /// One step: true when the message is complete.
    pub fn step(&mut self) -> Result<bool, FrameError> {
        let room = self.limit.saturating_add(1).saturating_sub(self.output.len());
        let step = DECOMPRESS_STEP_BYTES.min(room) as u64;
        self.decoder.get_mut().left = COMPRESSED_STEP_BYTES;
        let is_complete = match (&mut self.decoder).take(step).read_to_end(&mut self.output) {
            Ok(read) => (read as u64) < step,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(_) => return Err(FrameError::Corrupt),
        };
        if self.output.len() > self.limit {
            return Err(FrameError::TooLarge { bytes: self.output.len() as u64, limit: self.limit as u64 });
        }
        // What follows would be lost without a word.
        if is_complete && self.decoder.get_ref().bytes.has_remaining() {
            return Err(FrameError::Corrupt);
        }
        Ok(is_complete)
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.output.len()
    }

    /// Whether nothing came out yet.
    pub fn is_empty(&self) -> bool {
        self.output.is_empty()
    }

    /// The message.
    pub fn finish(self) -> Bytes {
        self.output.into()
    }
}

/// Frame one message of a reply.
pub fn framed(message: &[u8]) -> Bytes {
    framed_all(std::iter::once(message))
}

/// Frame the messages of a reply into one piece.
pub fn framed_all<'a>(messages: impl Iterator<Item = &'a [u8]> + Clone) -> Bytes {
    let size = messages.clone().map(|message| HEADER_BYTES + message.len()).sum();
    let mut frames = BytesMut::with_capacity(size);
    for message in messages {
        frames.put_u8(0);
        // Python cannot hold a gRPC message of 4 GiB in one reply: the binding refuses it.
        frames.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
        frames.put_slice(message);
    }
    frames.freeze()
}
