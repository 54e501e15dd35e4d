//! Replies that had left when their client gave up the call.
//!
//! ```text
//! reply ──written──▶ kept ──RST_STREAM of its stream──▶ a Cancel event, as of a reply that was not written
//!                     └── KEPT_MAX more ──▶ taken for delivered
//! ```
//!
//! HTTP/2 forgets a stream with its last byte and passes over what its client says of it after that. But a
//! client that has read the end of a stream does not reset it any more: who does has not had the reply. So
//! resets are looked for in the frames as they arrive.

use crate::gate::Shared;
use crate::inbox::{CancelReason, Event, EventKind};
use crate::reply::Keep;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

/// Some hundredths of a second of them under full load, more than a reset needs to come.
const KEPT_MAX: usize = 1_024;

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const RESET_BYTES: usize = HEAD_BYTES + 4;
const RST_STREAM: u8 = 3;
/// What clients say that give up. Some reset streams for other reasons.
const CANCEL: u32 = 8;

/// A stream of a connection of this thread.
pub(crate) type Place = (u64, u32);

/// The replies of a thread that were written last, of those somebody wants to know the end of.
pub(crate) struct Written {
    shared: Arc<Shared>,
    connections: Cell<u64>,
    kept: RefCell<Kept>,
}

#[derive(Default)]
struct Kept {
    replies: HashMap<Place, (u64, Keep)>,
    /// The oldest first; what was given up is among them.
    order: VecDeque<Place>,
}

impl Written {
    pub(crate) fn new(shared: Arc<Shared>) -> Rc<Self> {
        Rc::new(Self { shared, connections: Cell::new(0), kept: RefCell::default() })
    }

    /// A number no other connection of this thread has.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.replace(self.connections.get().wrapping_add(1))
    }

    /// The reply of a call was written.
    pub(crate) fn keep(&self, place: Place, id: u64, keep: Keep) {
        let mut kept = self.kept.borrow_mut();
        let oldest = if kept.order.len() < KEPT_MAX { None } else { kept.order.pop_front() };
        let delivered = oldest.and_then(|oldest| kept.replies.remove(&oldest));
        kept.order.push_back(place);
        kept.replies.insert(place, (id, keep));
        drop((kept, delivered));
    }

    /// The client of a stream gave it up. If its reply had been written, say that it was not delivered.
    fn given_up(&self, place: Place) {
        let reply = self.kept.borrow_mut().replies.remove(&place);
        if let Some((id, keep)) = reply {
            self.not_delivered(id, keep);
        }
    }

    /// Say that a client did not get the reply of a call.
    pub(crate) fn not_delivered(&self, id: u64, keep: Keep) {
        let mut event = Event::new(EventKind::Cancel, id, CancelReason::Client as u16);
        event.keep = Some(keep);
        self.shared.inbox.push(event);
    }
}

/// Finds the resets in what a connection reads.
pub(crate) struct Resets {
    written: Rc<Written>,
    connection: u64,
    frames: Frames,
}

impl Resets {
    pub(crate) fn new(written: &Rc<Written>, connection: u64) -> Self {
        Self { written: written.clone(), connection, frames: Frames::new() }
    }

    /// Bytes of the connection, in their order, none left out.
    pub(crate) fn pass(&mut self, bytes: &[u8]) {
        let (written, connection) = (&self.written, self.connection);
        self.frames.pass(bytes, |stream| written.given_up((connection, stream)));
    }
}

/// Where in the frames the next byte is.
struct Frames {
    skip: usize,
    /// The head of a frame; with the payload if it is a reset.
    head: [u8; RESET_BYTES],
    read: usize,
}

impl Frames {
    fn new() -> Self {
        Self { skip: PREFACE_BYTES, head: [0; RESET_BYTES], read: 0 }
    }

    fn pass(&mut self, bytes: &[u8], mut given_up: impl FnMut(u32)) {
        let mut rest = bytes;
        loop {
            let skipped = self.skip.min(rest.len());
            self.skip -= skipped;
            rest = rest.split_at(skipped).1;
            if rest.is_empty() {
                return;
            }
            let wanted = if self.read < HEAD_BYTES { HEAD_BYTES } else { RESET_BYTES };
            let (now, later) = rest.split_at((wanted - self.read).min(rest.len()));
            for (to, from) in self.head.iter_mut().skip(self.read).zip(now) {
                *to = *from;
            }
            self.read += now.len();
            rest = later;
            if self.read == wanted {
                self.taken(&mut given_up);
            }
        }
    }

    /// A head is there, or all of a reset.
    fn taken(&mut self, given_up: &mut impl FnMut(u32)) {
        let [l0, l1, l2, kind, _, s0, s1, s2, s3, code @ ..] = self.head;
        let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        let is_reset = kind == RST_STREAM && HEAD_BYTES + length == RESET_BYTES;
        if is_reset && self.read == HEAD_BYTES {
            return;
        }
        self.read = 0;
        if !is_reset {
            self.skip = length;
        } else if u32::from_be_bytes(code) == CANCEL {
            given_up(u32::from_be_bytes([s0, s1, s2, s3]) & (u32::MAX >> 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
        [&length[1..], &[kind, 0, 0x80, 0, 0, stream], payload].concat()
    }

    #[test]
    fn resets_are_found_however_the_bytes_are_cut() {
        let frames = [
            vec![RST_STREAM; PREFACE_BYTES],
            frame(4, 0, b""),
            frame(1, 1, &frame(RST_STREAM, 99, &[0, 0, 0, 8])),
            frame(RST_STREAM, 1, &[0, 0, 0, 8]),
            frame(0, 3, &[RST_STREAM; 300]),
            frame(RST_STREAM, 5, &[0, 0, 0, 0]),
            frame(RST_STREAM, 7, &[0, 0, 0, 8, 0, 0, 0, 8]),
            frame(RST_STREAM, 9, b""),
            frame(RST_STREAM, 11, &[0, 0, 0, 8]),
            frame(RST_STREAM, 13, &[0, 0, 0, 8]),
        ];
        for piece in [1, 2, 3, 9, 13, 100, 10_000] {
            let mut found = Vec::new();
            let mut watch = Frames::new();
            for bytes in frames.concat().chunks(piece) {
                watch.pass(bytes, |stream| found.push(stream));
            }
            assert_eq!(found, [1, 11, 13], "in pieces of {piece}");
        }
    }
}
