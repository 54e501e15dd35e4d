//! A call on its way in: is it one, may it come, has it arrived whole?
//!
//! Most requests lie complete in what was read with their headers; they are handed on at once, without a
//! task. The others get a task that waits for the rest.

use crate::config::{Kind, Limits, millis};
use crate::connection::Connection;
use crate::frame::{Decompressor, Encoding, FrameError, FrameReader, Message};
use crate::gate::FAR;
use crate::inbox::{EVENT_BYTES, Event, EventKind};
use crate::ledger::{Charge, Held};
use crate::metadata::{self, Metadata};
use crate::reactor::Reactor;
use crate::reply::{Responder, Tracked, code};
use crate::statistics::{Statistics, up};
use bytes::Bytes;
use h2::RecvStream;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

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
    pub(crate) charge: Charge,
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
    let statistics = &reactor.shared.statistics;
    if head.method != Method::POST {
        up(&statistics.calls_invalid);
        return refuse_http(respond, connection, stream, StatusCode::METHOD_NOT_ALLOWED);
    }
    if !metadata::is_grpc(&head.headers) {
        up(&statistics.calls_invalid);
        return refuse_http(respond, connection, stream, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
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
    let metadata = Metadata::new(&head.headers);
    let mut charge = Charge::new(&connection.ledger, Held::Headers);
    let mut body = Body::new(reactor, connection, stream, encoding);
    if let Err(text) = charge.set(metadata.size()).and_then(|()| body.charge.set(EVENT_BYTES)) {
        up(&statistics.calls_refused);
        return reactor.heads.refuse(respond, code::RESOURCE_EXHAUSTED, &text);
    }
    let call = Arriving {
        method,
        kind,
        metadata,
        charge,
        timeout: metadata::timeout(&head.headers),
        connection: connection.clone(),
        respond,
    };
    if kind == Kind::Bidi {
        crate::stream::open(reactor, call, body);
        return;
    }
    let compressed = match body.poll_only(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(Message { bytes, compressed: false })) => {
            return arrived(reactor, call, bytes, body.charge);
        }
        Poll::Ready(Err(failure)) => return refuse(reactor, call, &failure),
        Poll::Ready(Ok(message)) => Some(message),
        Poll::Pending => None,
    };
    tokio::task::spawn_local(arrive(reactor.clone(), call, body, compressed));
}

/// Wait for what is missing of a request: most of it, or its decompression.
async fn arrive(reactor: Rc<Reactor>, mut call: Arriving, mut body: Body, compressed: Option<Message>) {
    let began = Instant::now();
    let deadline = call.timeout.map(|timeout| began + timeout.min(FAR));
    let request = async {
        match compressed {
            Some(message) => body.decompressed(message).await,
            None => body.only(deadline).await,
        }
    };
    let request = tokio::select! {
        biased;
        reset = poll_fn(|cx| call.respond.poll_reset(cx)) => Err(Failure::Gone { reset: reset.is_ok() }),
        request = request => request,
    };
    match request {
        Ok(bytes) => {
            call.timeout = call.timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
            arrived(&reactor, call, bytes, body.charge);
        }
        Err(failure) => refuse(&reactor, call, &failure),
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
                let chunk = chunk?;
                let _ = body.flow_control().release_capacity(chunk.len());
            }
            Ok::<(), h2::Error>(())
        };
        if let Ok(Err(error)) = timeout(NOT_GRPC, discard).await {
            if error.is_reset() {
                connection.count_reset();
            }
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
fn arrived(reactor: &Rc<Reactor>, mut call: Arriving, message: Bytes, charge: Charge) {
    let Some(state) = reactor.reserve(&call) else {
        return reactor.refuse_busy(call.respond);
    };
    let waker = Waker::from(state.clone());
    if let Some(gone) = reset_of(&mut call.respond, &waker) {
        return refuse(reactor, call, &gone);
    }
    let mut event = Event::new(EventKind::Call, state.id, call.method);
    event.message = compacted(message, &reactor.shared.statistics);
    event.charge = Some(charge);
    reactor.hand_over(call, &state, event);
}

/// A message that may wait for Python does not keep a buffer many times its size.
fn compacted(message: Bytes, statistics: &Statistics) -> Bytes {
    let waiting = statistics.bytes_inbound.load(Relaxed);
    if waiting > COMPACT_ABOVE_BYTES && message.len() <= COMPACT_UP_TO_BYTES {
        return Bytes::copy_from_slice(&message);
    }
    message
}

/// Whether the stream is gone; else the waker hears of it.
fn reset_of(respond: &mut Responder, waker: &Waker) -> Option<Failure> {
    match respond.poll_reset(&mut Context::from_waker(waker)) {
        Poll::Ready(reset) => Some(Failure::Gone { reset: reset.is_ok() }),
        Poll::Pending => None,
    }
}

/// Answer a call that did not arrive, if there is anybody left to answer.
pub(crate) fn refuse(reactor: &Reactor, mut call: Arriving, failure: &Failure) {
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

impl Failure {
    pub(crate) fn exhausted(text: String) -> Self {
        Self::Status(code::RESOURCE_EXHAUSTED, text)
    }
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
    connection: Rc<Connection>,
    stream: RecvStream,
    frames: FrameReader,
    only: Option<Message>,
    received: u64,
    ended: bool,
    message_bytes: usize,
    message_ms: u64,
    pub(crate) charge: Charge,
}

impl Body {
    fn new(reactor: &Reactor, connection: &Rc<Connection>, stream: RecvStream, encoding: Encoding) -> Self {
        let limits = &reactor.shared.config.limits;
        let message_bytes = Limits::size(limits.message_bytes);
        Self {
            connection: connection.clone(),
            stream,
            frames: FrameReader::new(message_bytes, encoding),
            only: None,
            received: 0,
            ended: false,
            message_bytes,
            message_ms: limits.message_ms,
            charge: Charge::new(&connection.ledger, Held::Messages),
        }
    }

    /// Count what is held of this request.
    fn account(&mut self, message_bytes: usize) -> Result<(), Failure> {
        self.charge.set(EVENT_BYTES.saturating_add(message_bytes)).map_err(Failure::exhausted)
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

    /// Wait for the one message of a request until a deadline, as long as it makes headway.
    async fn only(&mut self, deadline: Option<Instant>) -> Result<Bytes, Failure> {
        let mut pace = Pace::new(self.message_ms, self.received);
        loop {
            let until = deadline.map_or(pace.look_at, |deadline| deadline.min(pace.look_at));
            match timeout_at(until, poll_fn(|cx| self.poll_only(cx))).await {
                Ok(message) => return self.decompressed(message?).await,
                Err(_) if deadline.is_none_or(|deadline| deadline > until) && pace.holds(self.received) => {}
                Err(_) => return Err(self.late()),
            }
        }
    }

    fn late(&self) -> Failure {
        let text = format!("the request did not arrive in time ({} bytes did)", self.received);
        Failure::Status(code::DEADLINE_EXCEEDED, text)
    }

    /// Decompress, letting others run between steps.
    async fn decompressed(&mut self, message: Message) -> Result<Bytes, Failure> {
        if !message.compressed {
            return Ok(message.bytes);
        }
        let connection = self.connection.clone();
        // It is never closed; without a permit it would only be less fair.
        let _turn = connection.decompressing.acquire().await;
        let compressed = message.bytes.len();
        let mut decompressor = Decompressor::new(message.bytes, self.message_bytes);
        while !decompressor.step()? {
            self.account(compressed.saturating_add(decompressor.len()))?;
            tokio::task::yield_now().await;
        }
        self.account(decompressor.len())?;
        Ok(decompressor.finish())
    }

    /// The next message of a stream of them, counted from here on by a charge of its own; None at the end. It
    /// may take its time to begin.
    pub(crate) async fn next(&mut self) -> Result<Option<(Bytes, Charge)>, Failure> {
        let mut pace = None;
        loop {
            if let Some(message) = self.frames.next_message()? {
                let message = self.decompressed(message).await?;
                self.account(self.frames.buffered())?;
                let charge = self.charge_for(message.len())?;
                return Ok(Some((message, charge)));
            }
            self.account(self.frames.buffered())?;
            let more = if self.frames.is_between() {
                poll_fn(|cx| self.poll_chunk(cx)).await?
            } else {
                let pace = pace.get_or_insert_with(|| Pace::new(self.message_ms, self.received));
                match timeout_at(pace.look_at, poll_fn(|cx| self.poll_chunk(cx))).await {
                    Ok(more) => more?,
                    Err(_) if pace.holds(self.received) => continue,
                    Err(_) => return Err(self.late()),
                }
            };
            if !more {
                self.frames.finish()?;
                return Ok(None);
            }
        }
    }

    /// A charge of its own for an event that goes to Python.
    pub(crate) fn charge_for(&self, message_bytes: usize) -> Result<Charge, Failure> {
        let mut charge = self.charge.sibling();
        charge.set(EVENT_BYTES.saturating_add(message_bytes)).map_err(Failure::exhausted)?;
        Ok(charge)
    }
}

/// Whether what has begun to arrive goes on arriving: looked at once in `message_ms`.
struct Pace {
    message_ms: u64,
    began: Instant,
    look_at: Instant,
    first: u64,
    seen: u64,
}

impl Pace {
    fn new(message_ms: u64, received: u64) -> Self {
        let began = Instant::now();
        Self { message_ms, began, look_at: began + millis(message_ms), first: received, seen: received }
    }

    /// Something came since the last look, and enough since the beginning.
    fn holds(&mut self, received: u64) -> bool {
        let now = Instant::now();
        let earned = received.saturating_sub(self.first).saturating_mul(1_000) / SLOWEST_BYTES_PER_S;
        let moved = received > std::mem::replace(&mut self.seen, received);
        self.look_at = now + millis(self.message_ms);
        moved && now.duration_since(self.began) < millis(self.message_ms.saturating_add(earned))
    }
}

fn cardinality(found: &str) -> Failure {
    Failure::Status(code::UNIMPLEMENTED, format!("the method takes exactly one message; there was {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;

    #[test]
    fn small_messages_are_copied_when_much_waits_and_not_for_the_headers_of_open_calls() {
        let statistics = std::sync::Arc::new(Statistics::default());
        let ledger = Ledger::new(statistics.clone(), &Limits::default());
        let (small, large) = (Bytes::from(vec![1; 100]), Bytes::from(vec![2; COMPACT_UP_TO_BYTES + 1]));
        let is_copied =
            |message: &Bytes| compacted(message.clone(), &statistics).as_ptr() != message.as_ptr();
        let mut headers = Charge::new(&ledger, Held::Headers);
        assert_eq!(headers.set(2 << 20), Ok(()));
        assert!(!is_copied(&small));
        let mut waiting = Charge::new(&ledger, Held::Messages);
        assert_eq!(waiting.set(2 << 20), Ok(()));
        assert!(is_copied(&small) && !is_copied(&large));
        drop(waiting);
        assert!(!is_copied(&small));
    }
}
