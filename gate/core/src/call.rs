//! A call on its way in: is it one, may it come, has it arrived whole?
//!
//! Most requests lie complete in what was read with their headers; they are handed on at once, without a
//! task. The others get a task that waits for the rest.

use crate::config::{Kind, Limits, millis};
use crate::connection::Connection;
use crate::frame::{Decompressor, Encoding, FrameError, FrameReader, Message};
use crate::inbox::{Charge, Event, EventKind};
use crate::metadata::{self, Metadata};
use crate::reactor::Reactor;
use crate::reply::{Responder, Tracked, code};
use crate::statistics::up;
use bytes::Bytes;
use h2::RecvStream;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// What an event costs beside its bytes.
const EVENT_BYTES: usize = 512;
const SLOWEST_BYTES_PER_S: u64 = 64 << 10;
/// When this much waits for Python, small messages are copied out of the buffers they arrived in.
const COMPACT_ABOVE_BYTES: u64 = 1 << 20;
const COMPACT_UP_TO_BYTES: usize = 64 << 10;
/// How long a request that is not gRPC may take before it is told so.
const NOT_GRPC: Duration = Duration::from_millis(500);

/// What is known of a call before its message is there.
pub(crate) struct Arriving {
    pub(crate) method: u16,
    pub(crate) kind: Kind,
    pub(crate) metadata: Metadata,
    pub(crate) timeout: Option<Duration>,
    pub(crate) connection: Rc<Connection>,
    pub(crate) respond: Responder,
}

/// Take a new stream.
pub(crate) fn accept(
    reactor: &Rc<Reactor>,
    connection: &Rc<Connection>,
    request: Request<RecvStream>,
    respond: Responder,
) {
    let (head, stream) = request.into_parts();
    if head.method != Method::POST {
        return refuse_http(respond, connection, stream, StatusCode::METHOD_NOT_ALLOWED);
    }
    if !metadata::is_grpc(&head.headers) {
        return refuse_http(respond, connection, stream, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let statistics = &reactor.shared.statistics;
    let Some((method, kind)) = reactor.shared.method(head.uri.path()) else {
        up(&statistics.calls_invalid);
        return reactor.heads.refuse(
            respond,
            code::UNIMPLEMENTED,
            &format!("unknown method {}", head.uri.path()),
        );
    };
    let Some(encoding) = metadata::encoding(&head.headers) else {
        up(&statistics.calls_invalid);
        return reactor.heads.refuse_encoding(respond);
    };
    let call = Arriving {
        method,
        kind,
        metadata: Metadata::new(&head.headers),
        timeout: metadata::timeout(&head.headers),
        connection: connection.clone(),
        respond,
    };
    let mut body = Body::new(reactor, stream, encoding, call.metadata.size());
    if kind == Kind::Bidi {
        crate::stream::open(reactor, call, body);
        return;
    }
    match body.poll_only(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(Message { bytes, compressed: false })) => arrived(reactor, call, bytes, body.charge),
        Poll::Ready(Err(failure)) => refuse(reactor, call, &failure),
        Poll::Ready(Ok(message)) => {
            let reactor = reactor.clone();
            tokio::task::spawn_local(async move {
                match body.decompressed(message).await {
                    Ok(bytes) => arrived(&reactor, call, bytes, body.charge),
                    Err(failure) => refuse(&reactor, call, &failure),
                }
            });
        }
        Poll::Pending => {
            let reactor = reactor.clone();
            tokio::task::spawn_local(async move {
                match body.only(call.timeout).await {
                    Ok(bytes) => arrived(&reactor, call, bytes, body.charge),
                    Err(failure) => refuse(&reactor, call, &failure),
                }
            });
        }
    }
}

/// Answer a request that is not gRPC when all of it is there, or has had its time.
fn refuse_http(
    mut respond: Responder,
    connection: &Rc<Connection>,
    mut body: RecvStream,
    status: StatusCode,
) {
    let connection = connection.clone();
    tokio::task::spawn_local(async move {
        let discard = async {
            while let Some(chunk) = body.data().await {
                let Ok(chunk) = chunk else { return Err(()) };
                let _ = body.flow_control().release_capacity(chunk.len());
            }
            Ok(())
        };
        if let Ok(Err(())) = timeout(NOT_GRPC, discard).await {
            return;
        }
        let mut response = Response::new(());
        *response.status_mut() = status;
        response.headers_mut().insert("content-type", HeaderValue::from_static("text/plain"));
        // An error means that the stream is gone: nobody is left to be told.
        if let Ok(mut stream) = respond.send_response(response, false) {
            let text =
                Bytes::from_static(b"This port speaks gRPC: POST with content-type application/grpc\n");
            let _ = stream.send_data(Tracked::new(text, &connection, None), true);
        }
    });
}

/// The request of a call is there: hand it to Python.
fn arrived(reactor: &Rc<Reactor>, mut call: Arriving, mut message: Bytes, charge: Charge) {
    let waiting = reactor.shared.statistics.bytes_inbound.load(Relaxed);
    if waiting > COMPACT_ABOVE_BYTES && message.len() <= COMPACT_UP_TO_BYTES {
        message = Bytes::copy_from_slice(&message);
    }
    let Some(state) = reactor.reserve(&call) else {
        return reactor.refuse_busy(call.respond);
    };
    let waker = Waker::from(state.clone());
    if let Some(gone) = reset_of(&mut call.respond, &waker) {
        return refuse(reactor, call, &gone);
    }
    let mut event = Event::new(EventKind::Call, state.id, call.method);
    event.message = message;
    event.charge = Some(charge);
    reactor.hand_over(call, state, event);
}

/// Whether the stream is gone; else the waker hears of it.
fn reset_of(respond: &mut Responder, waker: &Waker) -> Option<Failure> {
    match respond.poll_reset(&mut Context::from_waker(waker)) {
        Poll::Ready(reset) => Some(Failure::Gone { reset: reset.is_ok() }),
        Poll::Pending => None,
    }
}

fn refuse(reactor: &Reactor, mut call: Arriving, failure: &Failure) {
    let statistics = &reactor.shared.statistics;
    // A stream that was reset may look like one that ended too early.
    let gone = reset_of(&mut call.respond, Waker::noop());
    match gone.as_ref().unwrap_or(failure) {
        Failure::Gone { reset } => {
            up(&statistics.calls_cancelled);
            if *reset {
                call.connection.count_reset();
            }
        }
        Failure::Status(status, text) => {
            up(if *status == code::RESOURCE_EXHAUSTED {
                &statistics.calls_refused
            } else {
                &statistics.calls_invalid
            });
            reactor.heads.refuse(call.respond, *status, text);
        }
    }
}

/// Why a request did not arrive.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The client gave it up (`reset`), or its connection is gone.
    Gone { reset: bool },
    /// It is answered with a status.
    Status(u8, String),
}

impl From<FrameError> for Failure {
    fn from(error: FrameError) -> Self {
        let status = if matches!(error, FrameError::TooLarge { .. }) {
            code::RESOURCE_EXHAUSTED
        } else {
            code::INTERNAL
        };
        Self::Status(status, error.to_string())
    }
}

/// The request side of a stream.
pub(crate) struct Body {
    stream: RecvStream,
    frames: FrameReader,
    only: Option<Message>,
    received: u64,
    ended: bool,
    message_bytes: usize,
    inbound_bytes: u64,
    message_ms: u64,
    overhead: usize,
    pub(crate) charge: Charge,
}

impl Body {
    fn new(reactor: &Reactor, stream: RecvStream, encoding: Encoding, metadata_bytes: usize) -> Self {
        let limits = &reactor.shared.config.limits;
        let message_bytes = Limits::size(limits.message_bytes);
        Self {
            stream,
            frames: FrameReader::new(message_bytes, encoding),
            only: None,
            received: 0,
            ended: false,
            message_bytes,
            inbound_bytes: limits.inbound_bytes,
            message_ms: limits.message_ms,
            overhead: EVENT_BYTES + metadata_bytes,
            charge: Charge::new(&reactor.shared.statistics),
        }
    }

    /// Count what is held of this request.
    fn account(&mut self, message_bytes: usize) -> Result<(), Failure> {
        if self.charge.set(self.overhead + message_bytes, self.inbound_bytes) {
            return Ok(());
        }
        let text = format!("more than {} bytes of requests are waiting (inbound_bytes)", self.inbound_bytes);
        Err(Failure::Status(code::RESOURCE_EXHAUSTED, text))
    }

    /// Read one more chunk; false at the end of the stream.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Failure>> {
        if self.ended {
            return Poll::Ready(Ok(false));
        }
        match ready!(self.stream.poll_data(cx)) {
            Some(Ok(chunk)) => {
                self.received += chunk.len() as u64;
                // It fails only when the stream is gone, which the next read will say.
                let _ = self.stream.flow_control().release_capacity(chunk.len());
                self.frames.push(chunk);
                Poll::Ready(Ok(true))
            }
            Some(Err(error)) => Poll::Ready(Err(Failure::Gone { reset: error.is_reset() })),
            None => {
                self.ended = true;
                Poll::Ready(Ok(false))
            }
        }
    }

    /// The one message of a request, when the stream has ended.
    fn poll_only(&mut self, cx: &mut Context<'_>) -> Poll<Result<Message, Failure>> {
        loop {
            let more = ready!(self.poll_chunk(cx))?;
            while let Some(message) = self.frames.next_message()? {
                if self.only.replace(message).is_some() {
                    return Poll::Ready(Err(cardinality("more than one message")));
                }
            }
            let held = self.frames.buffered() + self.only.as_ref().map_or(0, |message| message.bytes.len());
            self.account(held)?;
            if !more || self.stream.is_end_stream() {
                self.frames.finish()?;
                return Poll::Ready(self.only.take().ok_or_else(|| cardinality("no message")));
            }
        }
    }

    /// Wait for the one message of a request, as long as it makes headway.
    async fn only(&mut self, timeout: Option<Duration>) -> Result<Bytes, Failure> {
        let began = Instant::now();
        let deadline = timeout.map(|timeout| began + timeout);
        loop {
            let allowed = millis(self.message_ms + self.received.saturating_mul(1_000) / SLOWEST_BYTES_PER_S);
            let until = deadline.map_or(began + allowed, |deadline| deadline.min(began + allowed));
            match timeout_at(until, poll_fn(|cx| self.poll_only(cx))).await {
                Ok(message) => return self.decompressed(message?).await,
                Err(_) if deadline.is_none_or(|deadline| deadline > until) && self.made_headway(began) => {}
                Err(_) => {
                    let text = format!("the request did not arrive in time ({} bytes did)", self.received);
                    return Err(Failure::Status(code::DEADLINE_EXCEEDED, text));
                }
            }
        }
    }

    fn made_headway(&self, began: Instant) -> bool {
        let allowed = millis(self.message_ms + self.received.saturating_mul(1_000) / SLOWEST_BYTES_PER_S);
        began + allowed > Instant::now()
    }

    /// Decompress, letting others run between steps.
    async fn decompressed(&mut self, message: Message) -> Result<Bytes, Failure> {
        if !message.compressed {
            return Ok(message.bytes);
        }
        let mut decompressor = Decompressor::new(message.bytes, self.message_bytes);
        while !decompressor.step()? {
            self.account(decompressor.len())?;
            tokio::task::yield_now().await;
        }
        self.account(decompressor.len())?;
        Ok(decompressor.finish())
    }

    /// The next message of a stream of them; None at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            if let Some(message) = self.frames.next_message()? {
                return self.decompressed(message).await.map(Some);
            }
            self.account(self.frames.buffered())?;
            if !poll_fn(|cx| self.poll_chunk(cx)).await? {
                self.frames.finish()?;
                return Ok(None);
            }
        }
    }

    /// A charge of its own for a message that goes to Python.
    pub(crate) fn charge_for(&self, reactor: &Reactor, message_bytes: usize) -> Charge {
        let mut charge = Charge::new(&reactor.shared.statistics);
        charge.set(EVENT_BYTES + message_bytes, self.inbound_bytes);
        charge
    }
}

fn cardinality(found: &str) -> Failure {
    Failure::Status(code::UNIMPLEMENTED, format!("the method takes exactly one message; there was {found}"))
}
