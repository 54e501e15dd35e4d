//! Answers on the wire: response heads, trailers, and bytes that know how long they wait.

use crate::config::millis;
use crate::connection::Connection;
use crate::given_up::{Place, Written};
use crate::metadata::percent_encoded;
use crate::reactor::Reactor;
use crate::statistics::up;
use bytes::{Buf, Bytes};
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, HeaderValue, Response};
use std::any::Any;
use std::cell::Cell;
use std::future::poll_fn;
use std::io::IoSlice;
use std::rc::Rc;
use tokio::time::timeout;

/// gRPC status codes the gate gives by itself.
pub(crate) mod code {
    pub(crate) const OK: u8 = 0;
    pub(crate) const DEADLINE_EXCEEDED: u8 = 4;
    pub(crate) const RESOURCE_EXHAUSTED: u8 = 8;
    pub(crate) const UNIMPLEMENTED: u8 = 12;
    pub(crate) const INTERNAL: u8 = 13;
}

/// What Python says to a call.
#[derive(Debug)]
pub enum Reply {
    /// Framed messages, the last ones, and OK.
    Last(Bytes),
    /// One framed message; the stream goes on.
    Message(Bytes),
    /// The end, with a status and its text.
    Status(u8, String),
}

/// Something of Python's that a reply carries, and that comes back if it could not be written.
pub type Keep = Box<dyn Any + Send>;

/// A reply and the call it is for.
pub struct Outgoing {
    /// The call.
    pub id: u64,
    /// What is said.
    pub reply: Reply,
    /// What comes back in a `Cancel` event if the client does not get it.
    pub keep: Option<Keep>,
}

/// A reply somebody wants to know the end of. Dropped with bytes left unwritten, it says so; else it is kept
/// for a client that gives up later.
pub(crate) struct Delivery {
    id: u64,
    keep: Option<Keep>,
    unwritten: Cell<usize>,
    place: Cell<Option<Place>>,
    written: Rc<Written>,
}

impl Delivery {
    pub(crate) fn new(written: &Rc<Written>, id: u64, keep: Keep, bytes: usize) -> Rc<Self> {
        Rc::new(Self {
            id,
            keep: Some(keep),
            unwritten: Cell::new(bytes),
            place: Cell::new(None),
            written: written.clone(),
        })
    }

    /// The stream it goes on.
    pub(crate) fn goes_on(&self, connection: &Connection, respond: &Responder) {
        self.place.set(Some((connection.number, respond.stream_id().as_u32())));
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let Some(keep) = self.keep.take() else { return };
        if self.unwritten.get() > 0 {
            self.written.not_delivered(self.id, keep);
        } else if let Some(place) = self.place.get() {
            self.written.keep(place, self.id, keep);
        }
    }
}

/// Bytes on their way to a peer, counted on its connection until HTTP/2 lets go of them: written, or their
/// stream gone.
pub(crate) struct Tracked {
    bytes: Bytes,
    // Before the connection: it is over when all is told about it.
    delivery: Option<Rc<Delivery>>,
    connection: Rc<Connection>,
}

impl Tracked {
    pub(crate) fn new(bytes: Bytes, connection: &Rc<Connection>, delivery: Option<Rc<Delivery>>) -> Self {
        connection.hold(bytes.len());
        Self { bytes, delivery, connection: connection.clone() }
    }

    pub(crate) fn split_to(&mut self, length: usize) -> Self {
        Self {
            bytes: self.bytes.split_to(length.min(self.bytes.len())),
            delivery: self.delivery.clone(),
            connection: self.connection.clone(),
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.connection.release(self.bytes.len());
    }
}

impl Buf for Tracked {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn chunks_vectored<'a>(&'a self, dst: &mut [IoSlice<'a>]) -> usize {
        self.bytes.chunks_vectored(dst)
    }

    fn advance(&mut self, count: usize) {
        self.connection.release(count);
        if let Some(delivery) = &self.delivery {
            delivery.unwritten.set(delivery.unwritten.get().saturating_sub(count));
        }
        self.bytes.advance(count);
    }
}

/// The response side of a stream.
pub(crate) type Responder = SendResponse<Tracked>;

/// Heads that every reply shares.
pub(crate) struct Heads {
    response: Response<()>,
    ok: HeaderMap,
}

impl Heads {
    pub(crate) fn new() -> Self {
        let mut response = Response::new(());
        response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        let mut ok = HeaderMap::new();
        ok.insert("grpc-status", HeaderValue::from_static("0"));
        Self { response, ok }
    }

    pub(crate) fn response(&self) -> Response<()> {
        self.response.clone()
    }

    pub(crate) fn ok(&self) -> HeaderMap {
        self.ok.clone()
    }

    pub(crate) fn trailers(status: u8, text: &str) -> HeaderMap {
        let mut trailers = HeaderMap::new();
        write_status(&mut trailers, status, text);
        trailers
    }

    /// Answer a call that has said nothing yet with a status alone.
    pub(crate) fn refuse(&self, mut respond: Responder, status: u8, text: &str) {
        let mut response = self.response();
        write_status(response.headers_mut(), status, text);
        // An error means that the stream is gone: nobody is left to be told.
        let _ = respond.send_response(response, true);
    }

    /// The same, with what compression we know.
    pub(crate) fn refuse_encoding(&self, mut respond: Responder) {
        let mut response = self.response();
        let headers = response.headers_mut();
        headers.insert("grpc-accept-encoding", HeaderValue::from_static("identity,gzip"));
        write_status(headers, code::UNIMPLEMENTED, "grpc-encoding is neither identity nor gzip");
        let _ = respond.send_response(response, true);
    }
}

/// Clients take headers of 8 KiB in all.
const STATUS_TEXT_BYTES: usize = 4 << 10;

fn write_status(headers: &mut HeaderMap, status: u8, text: &str) {
    headers.insert("grpc-status", HeaderValue::from(u16::from(status)));
    if text.is_empty() {
        return;
    }
    if let Ok(value) = HeaderValue::from_str(&percent_encoded(text, STATUS_TEXT_BYTES)) {
        headers.insert("grpc-message", value);
    }
}

/// The stream is gone.
pub(crate) struct Gone;

const CHUNK_BYTES: usize = 256 << 10;

/// Send bytes as fast as the peer's windows allow; a stream whose window stays closed is given up.
pub(crate) async fn put(
    reactor: &Reactor,
    stream: &mut SendStream<Tracked>,
    mut bytes: Tracked,
) -> Result<(), Gone> {
    let shared = &reactor.shared;
    while bytes.has_remaining() {
        stream.reserve_capacity(bytes.remaining().min(CHUNK_BYTES));
        let window = timeout(millis(shared.config.limits.stall_ms), poll_fn(|cx| stream.poll_capacity(cx)));
        let Ok(window) = window.await else {
            up(&shared.statistics.replies_stalled);
            stream.send_reset(Reason::CANCEL);
            return Err(Gone);
        };
        let window = window.ok_or(Gone)?.map_err(|_| Gone)?;
        if window > 0 {
            stream.send_data(bytes.split_to(window), false).map_err(|_| Gone)?;
        }
    }
    Ok(())
}
