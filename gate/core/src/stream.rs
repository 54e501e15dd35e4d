//! Streams that go on: messages both ways, each way only as fast as the other end takes them.
//!
//! ```text
//! client ──▶ HTTP/2 window ──▶ reader ──▶ inbox ──▶ Python     the reader rests while Python has not taken
//! client ◀── HTTP/2 window ◀── writer ◀── queue ◀── Python     `send` says no while the client has not
//! ```

use crate::call::{Arriving, Body, Failure};
use crate::config::Limits;
use crate::connection::Connection;
use crate::inbox::{CallState, CancelReason, EVENT_BYTES, Event, EventKind};
use crate::reactor::Reactor;
use crate::reply::{Delivery, Gone, Heads, Reply, Tracked, code, put};
use h2::SendStream;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::mpsc::UnboundedReceiver;

/// What the writer of a stream is given to write.
pub(crate) enum Outbound {
    /// One framed message.
    Message(Tracked),
    /// Framed messages, then OK.
    Last(Tracked),
    /// A status.
    Status(u8, String),
}

/// Start a bidirectional stream.
pub(crate) fn open(reactor: &Rc<Reactor>, mut call: Arriving, body: Body) {
    let charge = match body.charge_for(0) {
        Ok(charge) => charge,
        Err(failure) => return crate::call::refuse(reactor, call, &failure),
    };
    let Some(state) = reactor.reserve(&call) else {
        return reactor.refuse_busy(call.respond);
    };
    // The head goes out at once: clients wait for it.
    let Ok(stream) = call.respond.send_response(reactor.heads.response(), false) else { return };
    let connection = call.connection.clone();
    let mut event = Event::new(EventKind::Open, state.id, call.method);
    event.charge = Some(charge);
    let queue = reactor.hand_over_stream(call, &state, event);
    let reactor = reactor.clone();
    tokio::task::spawn_local(async move {
        let reading = async {
            read(&reactor, &state, body).await;
            pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = write(&reactor, &connection, &state, stream, queue) => {}
            () = reading => {}
        }
    });
}

/// Pass messages to Python until the client has no more.
async fn read(reactor: &Rc<Reactor>, state: &Arc<CallState>, mut body: Body) {
    let limit = Limits::size(reactor.shared.config.limits.unread_bytes_per_stream);
    let Some(inflow) = &state.inflow else { return };
    loop {
        while inflow.unread.load(Relaxed) > limit {
            inflow.taken.notified().await;
        }
        match body.next().await {
            Ok(Some((message, charge))) => {
                inflow.unread.fetch_add(EVENT_BYTES + message.len(), Relaxed);
                let mut event = Event::new(EventKind::Message, state.id, 0);
                event.charge = Some(charge);
                event.message = message;
                event.state = Some(state.clone());
                reactor.shared.inbox.push(event);
            }
            Ok(None) => {
                let mut event = Event::new(EventKind::HalfClose, state.id, 0);
                event.state = Some(state.clone());
                reactor.shared.inbox.push(event);
                return;
            }
            Err(failure) => return fail(reactor, state, failure),
        }
    }
}

/// End a stream that cannot be read on.
fn fail(reactor: &Reactor, state: &CallState, failure: Failure) {
    match failure {
        // The writer sees a reset and says so.
        Failure::Gone { .. } => {}
        Failure::Status(status, text) => reactor.end(state.id, CancelReason::Refused, Some((status, text))),
    }
}

/// Write what Python says until it has said all, or the stream is gone.
pub(crate) async fn write(
    reactor: &Rc<Reactor>,
    connection: &Rc<Connection>,
    state: &Arc<CallState>,
    mut stream: SendStream<Tracked>,
    mut queue: UnboundedReceiver<Outbound>,
) {
    loop {
        let next = tokio::select! {
            biased;
            next = queue.recv() => next,
            reset = poll_fn(|cx| stream.poll_reset(cx)) => {
                if reset.is_ok() {
                    connection.count_reset();
                }
                reactor.end(state.id, CancelReason::Client, None);
                return;
            }
        };
        let written = match next {
            Some(Outbound::Message(bytes)) => {
                let length = bytes::Buf::remaining(&bytes);
                let written = put(reactor, &mut stream, bytes).await;
                state.unsent.fetch_sub(length, Relaxed);
                written
            }
            Some(Outbound::Last(bytes)) => {
                if put(reactor, &mut stream, bytes).await.is_ok() {
                    let _ = stream.send_trailers(reactor.heads.ok());
                }
                return;
            }
            Some(Outbound::Status(status, text)) => {
                let _ = stream.send_trailers(Heads::trailers(status, &text));
                return;
            }
            None => return,
        };
        if let Err(Gone) = written {
            reactor.end(state.id, CancelReason::Client, None);
            return;
        }
    }
}

/// What a reply means to the writer of a stream.
pub(crate) fn outbound(
    reply: Reply,
    connection: &Rc<Connection>,
    delivery: Option<Rc<Delivery>>,
) -> Outbound {
    match reply {
        Reply::Message(bytes) => Outbound::Message(Tracked::new(bytes, connection, delivery)),
        Reply::Last(bytes) if bytes.is_empty() => Outbound::Status(code::OK, String::new()),
        Reply::Last(bytes) => Outbound::Last(Tracked::new(bytes, connection, delivery)),
        Reply::Status(status, text) => Outbound::Status(status, text),
    }
}
