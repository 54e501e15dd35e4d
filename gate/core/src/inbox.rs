//! What waits for Python: events, bounded in bytes, and the descriptor that says so.
//!
//! ```text
//! gate threads ──push──▶ [event, event, …] ──take──▶ Python, a whole batch at once
//!                  └── descriptor written only when the inbox was empty
//! ```
//!
//! Neither side waits for the other: the lock is held to append one event or to take them all out.

use crate::connection::Connection;
use crate::ledger::Charge;
use crate::metadata::Metadata;
use crate::reply::Keep;
use crate::wake::WakeUp;
use bytes::Bytes;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;
use std::time::Duration;
use tokio::sync::Notify;

/// What an event costs beside its bytes: messages may be empty.
pub(crate) const EVENT_BYTES: usize = 512;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// A call of one request: the request is there. Detail: the method.
    Call = 0,
    /// A bidirectional stream began. Detail: the method.
    Open = 1,
    /// A message of a bidirectional stream.
    Message = 2,
    /// The client of a bidirectional stream has said all it will.
    HalfClose = 3,
    /// A call Python knows has ended without it. Detail: a `CancelReason`.
    Cancel = 4,
    /// After `drain`: the last connection is closed.
    Drained = 5,
}

/// Why a call ended without Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CancelReason {
    /// The client gave it up, or its connection is gone.
    Client = 0,
    /// Its deadline passed.
    Deadline = 1,
    /// What it sent could not be read, or was too much.
    Refused = 2,
}

/// Facts about a connection.
#[derive(Debug)]
pub struct ConnectionFacts {
    /// `ip:port`, or `unix:`.
    pub peer: String,
    /// Whether it is encrypted.
    pub is_tls: bool,
    /// The client's certificate, DER; empty for none.
    pub peer_certificate: Vec<u8>,
}

/// What a call brought beside its message.
pub struct Request {
    /// Its headers.
    pub metadata: Metadata,
    /// Where it came from.
    pub connection: Arc<ConnectionFacts>,
    /// What was left of its deadline when it arrived.
    pub deadline_ms: Option<u64>,
    /// The part both sides know.
    pub state: Arc<CallState>,
    /// The headers are held as long as somebody has them.
    #[allow(dead_code, reason = "its drop is what it is for")]
    charge: Charge,
}

impl Request {
    pub(crate) fn new(
        metadata: Metadata,
        charge: Charge,
        connection: &Connection,
        timeout: Option<Duration>,
        state: &Arc<CallState>,
    ) -> Self {
        Self {
            metadata,
            connection: connection.facts.clone(),
            deadline_ms: timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            state: state.clone(),
            charge,
        }
    }
}

/// One thing that happened.
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// Of which call.
    pub id: u64,
    /// Method or reason, see `EventKind`.
    pub detail: u16,
    /// The message, if it brings one.
    pub message: Bytes,
    /// With `Call` and `Open`.
    pub request: Option<Request>,
    /// With `Cancel`: what a reply carried that could not be written.
    pub keep: Option<Keep>,
    pub(crate) state: Option<Arc<CallState>>,
    pub(crate) charge: Option<Charge>,
}

impl Event {
    pub(crate) fn new(kind: EventKind, id: u64, detail: u16) -> Self {
        Self { kind, id, detail, message: Bytes::new(), request: None, keep: None, state: None, charge: None }
    }

    /// Whether Python should see it, now that it is taken.
    fn deliver(&mut self) -> bool {
        self.charge = None;
        if let Some(request) = &self.request {
            return request.state.phase.compare_exchange(QUEUED, TAKEN, AcqRel, Acquire).is_ok();
        }
        let Some(state) = &self.state else { return true };
        if let (EventKind::Message, Some(inflow)) = (self.kind, &state.inflow) {
            inflow.unread.fetch_sub(EVENT_BYTES + self.message.len(), Relaxed);
            inflow.taken.notify_one();
        }
        state.phase.load(Acquire) == TAKEN
    }
}

const QUEUED: u8 = 0;
const TAKEN: u8 = 1;
const GONE: u8 = 2;

/// The part of a call that both sides know.
pub struct CallState {
    /// The call.
    pub id: u64,
    phase: AtomicU8,
    /// Bytes of `send` not yet written.
    pub unsent: AtomicUsize,
    pub(crate) inflow: Option<Inflow>,
    resets: Arc<Resets>,
}

/// How much of a bidirectional stream waits for Python.
#[derive(Default)]
pub(crate) struct Inflow {
    pub(crate) unread: AtomicUsize,
    pub(crate) taken: Notify,
}

impl CallState {
    pub(crate) fn new(id: u64, bidi: bool, resets: Arc<Resets>) -> Arc<Self> {
        let inflow = bidi.then(Inflow::default);
        Arc::new(Self { id, phase: AtomicU8::new(QUEUED), unsent: AtomicUsize::new(0), inflow, resets })
    }

    /// Mark it as ended. True when Python has seen it and must be told.
    pub(crate) fn end(&self) -> bool {
        self.phase.swap(GONE, AcqRel) == TAKEN
    }

    /// Whether it has ended.
    pub fn is_gone(&self) -> bool {
        self.phase.load(Acquire) == GONE
    }
}

/// HTTP/2 wakes a call when its stream is reset: the id goes to the list of those to look at.
impl Wake for CallState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut woken = self.resets.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let first = woken.is_empty();
        woken.push(self.id);
        drop(woken);
        if first {
            self.resets.notify.notify_one();
        }
    }
}

/// Calls of one thread whose stream something happened to.
#[derive(Default)]
pub(crate) struct Resets {
    woken: Mutex<Vec<u64>>,
    notify: Notify,
}

impl Resets {
    /// Wait for some and take them.
    pub(crate) async fn next(&self) -> Vec<u64> {
        self.notify.notified().await;
        std::mem::take(&mut *self.woken.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The queue towards Python.
pub struct Inbox {
    events: Mutex<VecDeque<Event>>,
    /// Whether there are events, for whoever asks all the time.
    is_filled: AtomicBool,
    wake: WakeUp,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { events: Mutex::default(), is_filled: AtomicBool::new(false), wake: WakeUp::new()? })
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.is_filled.load(Acquire)
    }

    pub(crate) fn push(&self, event: Event) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let first = events.is_empty();
        events.push_back(event);
        self.is_filled.store(true, Release);
        drop(events);
        if first {
            self.wake.signal();
        }
    }

    /// Up to `max` events. While more wait, the descriptor stays readable.
    pub fn take(&self, max: usize) -> Vec<Event> {
        let mut taken: Vec<Event> = {
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            let count = events.len().min(max);
            let taken = events.drain(..count).collect();
            if events.is_empty() {
                // Under the lock: after it, this might take back the word of an event pushed meanwhile.
                self.wake.clear();
                self.is_filled.store(false, Release);
            }
            taken
        };
        taken.retain_mut(Event::deliver);
        taken
    }

    /// Readable when events wait.
    pub fn fileno(&self) -> RawFd {
        self.wake.fileno()
    }
}
