//! One native thread: its connections, its open calls, and the replies that come for them.

use crate::busy_poll::BusyPoll;
use crate::call::Arriving;
use crate::config::{Kind, millis};
use crate::connection::Connection;
use crate::gate::{FAR, Shared};
use crate::given_up::Written;
use crate::inbox::{CallState, CancelReason, Event, EventKind, Request, Resets};
use crate::reply::{Delivery, Heads, Outgoing, Reply, Responder, Tracked, code, put};
use crate::statistics::{down, up};
use crate::stream::{self, Outbound};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep};

/// A reply up to this size is queued on its stream at once when no more than this waits on the connection;
/// others wait for the peer's window.
const DIRECT_BYTES: usize = 256 << 10;
const NOT_READ: &str = "replies are not being read (reply_bytes_per_connection, reply_bytes)";
const SWEEP: Duration = Duration::from_millis(50);

/// A call Python has to answer.
struct Slot {
    answer: Answer,
    state: Arc<CallState>,
    connection: Rc<Connection>,
    deadline: Option<Instant>,
}

/// Where its answer goes.
enum Answer {
    /// Nothing was said yet.
    Waiting(Responder),
    /// A writer has the stream.
    Streaming(UnboundedSender<Outbound>),
}

/// Open calls by id: `thread << 54 | index << 32 | generation`. A generation is used once, so that a late
/// reply never reaches another call.
#[derive(Default)]
struct Calls {
    thread: u64,
    entries: Vec<(u32, Option<Slot>)>,
    free: Vec<u32>,
}

const THREAD_SHIFT: u32 = 54;
const INDEX_SHIFT: u32 = 32;
const INDEX_MASK: u64 = (1 << (THREAD_SHIFT - INDEX_SHIFT)) - 1;

/// The thread a call belongs to.
pub(crate) fn thread_of(id: u64) -> usize {
    usize::try_from(id >> THREAD_SHIFT).unwrap_or(usize::MAX)
}

fn index_of(id: u64) -> usize {
    usize::try_from((id >> INDEX_SHIFT) & INDEX_MASK).unwrap_or(usize::MAX)
}

#[allow(clippy::cast_possible_truncation)] // the low 32 bits are the generation
fn generation_of(id: u64) -> u32 {
    id as u32
}

impl Calls {
    /// The id the next call gets.
    fn next_id(&mut self) -> u64 {
        let index = self.free.last().copied().unwrap_or_else(|| {
            let index = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
            self.entries.push((0, None));
            self.free.push(index);
            index
        });
        let generation = self.entries.get(index as usize).map_or(0, |entry| entry.0);
        self.thread << THREAD_SHIFT | u64::from(index) << INDEX_SHIFT | u64::from(generation)
    }

    fn insert(&mut self, id: u64, slot: Slot) {
        self.free.pop();
        if let Some(entry) = self.entries.get_mut(index_of(id)) {
            entry.1 = Some(slot);
        }
    }

    fn get(&mut self, id: u64) -> Option<&mut Slot> {
        match self.entries.get_mut(index_of(id)) {
            Some((generation, slot)) if *generation == generation_of(id) => slot.as_mut(),
            _ => None,
        }
    }

    fn remove(&mut self, id: u64) -> Option<Slot> {
        let index = index_of(id);
        let (generation, slot) = self.entries.get_mut(index)?;
        if *generation != generation_of(id) {
            return None;
        }
        let slot = slot.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(u32::try_from(index).unwrap_or(u32::MAX));
        Some(slot)
    }

    fn ids(&self) -> Vec<u64> {
        self.entries.iter().filter_map(|entry| entry.1.as_ref()).map(|slot| slot.state.id).collect()
    }

    /// Ids whose deadline has passed, and the earliest of the others.
    fn expired(&self, now: Instant) -> (Vec<u64>, Option<Instant>) {
        let mut expired = Vec::new();
        let mut earliest: Option<Instant> = None;
        for slot in self.entries.iter().filter_map(|entry| entry.1.as_ref()) {
            match slot.deadline {
                Some(deadline) if deadline <= now => expired.push(slot.state.id),
                Some(deadline) => earliest = Some(earliest.map_or(deadline, |at| at.min(deadline))),
                None => {}
            }
        }
        (expired, earliest)
    }
}

/// The state of one thread.
pub(crate) struct Reactor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) heads: Heads,
    pub(crate) busy_poll: BusyPoll,
    pub(crate) written: Rc<Written>,
    calls: RefCell<Calls>,
    resets: Arc<Resets>,
    earliest: Cell<Option<Instant>>,
    deadline_set: Notify,
}

impl Reactor {
    pub(crate) fn new(shared: Arc<Shared>, thread: usize) -> Rc<Self> {
        let busy_poll = BusyPoll::new(
            shared.config.limits.busy_poll_us,
            shared.lone_caller.clone(),
            shared.statistics.clone(),
        );
        Rc::new(Self {
            heads: Heads::new(),
            busy_poll,
            written: Written::new(shared.clone()),
            shared,
            calls: RefCell::new(Calls { thread: thread as u64, ..Calls::default() }),
            resets: Arc::default(),
            earliest: Cell::new(None),
            deadline_set: Notify::new(),
        })
    }

    /// The state of a call about to begin; None when there are too many. Nothing may be awaited until it is
    /// handed over.
    pub(crate) fn reserve(&self, call: &Arriving) -> Option<Arc<CallState>> {
        if self.shared.statistics.calls.load(Relaxed) >= self.shared.config.limits.calls {
            return None;
        }
        let id = self.calls.borrow_mut().next_id();
        Some(CallState::new(id, call.kind == Kind::Bidi, self.resets.clone()))
    }

    pub(crate) fn refuse_busy(&self, respond: Responder) {
        up(&self.shared.statistics.calls_refused);
        self.heads.refuse(respond, code::RESOURCE_EXHAUSTED, "too many calls are open (calls)");
    }

    /// Give a call to Python.
    pub(crate) fn hand_over(&self, call: Arriving, state: &Arc<CallState>, event: Event) {
        let Arriving { respond, connection, metadata, charge, timeout, .. } = call;
        let request = Request::new(metadata, charge, &connection, timeout, state);
        self.begin(Answer::Waiting(respond), connection, timeout, request, event);
    }

    /// The same for a stream whose head is out; what Python says comes from the queue.
    pub(crate) fn hand_over_stream(
        &self,
        call: Arriving,
        state: &Arc<CallState>,
        event: Event,
    ) -> UnboundedReceiver<Outbound> {
        let (to_writer, queue) = unbounded_channel();
        let Arriving { connection, metadata, charge, timeout, .. } = call;
        let request = Request::new(metadata, charge, &connection, timeout, state);
        self.begin(Answer::Streaming(to_writer), connection, timeout, request, event);
        queue
    }

    fn begin(
        &self,
        answer: Answer,
        connection: Rc<Connection>,
        timeout: Option<Duration>,
        request: Request,
        mut event: Event,
    ) {
        let deadline = timeout.map(|timeout| self.deadline_in(timeout));
        let state = request.state.clone();
        self.busy_poll.called(state.id);
        event.request = Some(request);
        self.calls.borrow_mut().insert(state.id, Slot { answer, state, connection, deadline });
        up(&self.shared.statistics.calls);
        up(&self.shared.statistics.calls_accepted);
        self.shared.inbox.push(event);
    }

    /// When the gate answers a call with this timeout itself.
    fn deadline_in(&self, timeout: Duration) -> Instant {
        let deadline =
            Instant::now() + timeout.min(FAR) + millis(self.shared.config.limits.deadline_grace_ms);
        let is_earliest = self.earliest.get().is_none_or(|earliest| deadline < earliest);
        if is_earliest && self.earliest.replace(Some(deadline)).is_none() {
            self.deadline_set.notify_one();
        }
        deadline
    }

    fn remove(&self, id: u64) -> Option<Slot> {
        let slot = self.calls.borrow_mut().remove(id)?;
        down(&self.shared.statistics.calls);
        Some(slot)
    }

    /// Pass on one reply. What comes for a call that is over is dropped.
    pub(crate) fn answer(self: &Rc<Self>, outgoing: Outgoing) {
        let Outgoing { id, reply, keep } = outgoing;
        self.busy_poll.answered(id);
        let bytes = match reply {
            Reply::Message(bytes) => return self.answer_on(id, bytes),
            Reply::Last(ref bytes) => bytes.len(),
            Reply::Status(..) => 0,
        };
        // Dropped on every way on which the bytes are not written.
        let delivery = keep.map(|keep| Delivery::new(&self.written, id, keep, bytes));
        let Some(slot) = self.remove(id) else { return };
        // Python has answered: nothing more is told about this call, but that it was not delivered.
        slot.state.end();
        match slot.answer {
            Answer::Waiting(respond) => {
                if let Some(delivery) = &delivery {
                    delivery.goes_on(&slot.connection, &respond);
                }
                self.answer_once(respond, &slot.connection, reply, delivery);
            }
            Answer::Streaming(writer) => {
                // Without a writer the stream is gone.
                let _ = writer.send(stream::outbound(reply, &slot.connection, delivery));
            }
        }
    }

    /// The whole answer to a call that has said nothing yet.
    fn answer_once(
        self: &Rc<Self>,
        mut respond: Responder,
        connection: &Rc<Connection>,
        reply: Reply,
        delivery: Option<Rc<Delivery>>,
    ) {
        let bytes = match reply {
            Reply::Status(status, text) => return self.heads.refuse(respond, status, &text),
            Reply::Last(bytes) | Reply::Message(bytes) if bytes.is_empty() => {
                return self.heads.refuse(respond, code::OK, "");
            }
            Reply::Last(bytes) | Reply::Message(bytes) => bytes,
        };
        if !connection.has_room(bytes.len(), &self.shared.config.limits) {
            up(&self.shared.statistics.calls_refused);
            return self.heads.refuse(respond, code::RESOURCE_EXHAUSTED, NOT_READ);
        }
        // Every error from here on means that the stream is gone.
        let Ok(mut stream) = respond.send_response(self.heads.response(), false) else { return };
        let direct = connection.unwritten().saturating_add(bytes.len()) <= DIRECT_BYTES;
        let bytes = Tracked::new(bytes, connection, delivery);
        if direct {
            if stream.send_data(bytes, false).is_ok() {
                let _ = stream.send_trailers(self.heads.ok());
            }
            return;
        }
        let reactor = self.clone();
        tokio::task::spawn_local(async move {
            if put(&reactor, &mut stream, bytes).await.is_ok() {
                let _ = stream.send_trailers(reactor.heads.ok());
            }
        });
    }

    /// One message of a stream that goes on; the first one gives the stream a writer.
    fn answer_on(self: &Rc<Self>, id: u64, bytes: Bytes) {
        let mut calls = self.calls.borrow_mut();
        let Some(slot) = calls.get(id) else { return };
        let connection = slot.connection.clone();
        if !connection.has_room(bytes.len(), &self.shared.config.limits) {
            drop(calls);
            let status = (code::RESOURCE_EXHAUSTED, String::from(NOT_READ));
            return self.end(id, CancelReason::Refused, Some(status));
        }
        let message = Outbound::Message(Tracked::new(bytes, &connection, None));
        if let Answer::Streaming(writer) = &slot.answer {
            let _ = writer.send(message);
            return;
        }
        let (to_writer, queue) = unbounded_channel();
        let _ = to_writer.send(message);
        let before = std::mem::replace(&mut slot.answer, Answer::Streaming(to_writer));
        let state = slot.state.clone();
        drop(calls);
        let Answer::Waiting(mut respond) = before else { return };
        match respond.send_response(self.heads.response(), false) {
            Ok(stream) => {
                let reactor = self.clone();
                tokio::task::spawn_local(async move {
                    stream::write(&reactor, &connection, &state, stream, queue).await;
                });
            }
            Err(_) => self.end(state.id, CancelReason::Client, None),
        }
    }

    /// End a call without Python, and tell Python if it knows the call.
    pub(crate) fn end(&self, id: u64, reason: CancelReason, status: Option<(u8, String)>) {
        let Some(slot) = self.remove(id) else { return };
        let statistics = &self.shared.statistics;
        up(match reason {
            CancelReason::Client => &statistics.calls_cancelled,
            CancelReason::Deadline => &statistics.calls_expired,
            CancelReason::Refused => &statistics.calls_refused,
        });
        if slot.state.end() {
            self.shared.inbox.push(Event::new(EventKind::Cancel, id, reason as u16));
        }
        let Some((status, text)) = status else { return };
        match slot.answer {
            Answer::Waiting(respond) => self.heads.refuse(respond, status, &text),
            Answer::Streaming(writer) => {
                let _ = writer.send(Outbound::Status(status, text));
            }
        }
    }

    /// End every call: nobody is served any more.
    pub(crate) fn end_all(&self) {
        let open = self.calls.borrow().ids();
        for id in open {
            self.end(id, CancelReason::Client, None);
        }
    }

    /// Look at the calls something happened to, and end those that were reset.
    pub(crate) async fn watch_resets(self: Rc<Self>) {
        loop {
            for id in self.resets.next().await {
                let mut calls = self.calls.borrow_mut();
                let Some(slot) = calls.get(id) else { continue };
                let Answer::Waiting(respond) = &mut slot.answer else { continue };
                let waker = Waker::from(slot.state.clone());
                let std::task::Poll::Ready(reset) = respond.poll_reset(&mut Context::from_waker(&waker))
                else {
                    continue;
                };
                let connection = slot.connection.clone();
                drop(calls);
                if reset.is_ok() {
                    connection.count_reset();
                }
                self.end(id, CancelReason::Client, None);
            }
        }
    }

    /// Answer calls whose deadline has passed and that Python has not answered.
    pub(crate) async fn watch_deadlines(self: Rc<Self>) {
        loop {
            let Some(earliest) = self.earliest.get() else {
                self.deadline_set.notified().await;
                continue;
            };
            let now = Instant::now();
            if earliest > now {
                sleep((earliest - now).min(SWEEP)).await;
                continue;
            }
            let (expired, earliest) = self.calls.borrow().expired(now);
            self.earliest.set(earliest);
            for id in expired {
                let status = (code::DEADLINE_EXCEEDED, String::from("the deadline of the call has passed"));
                self.end(id, CancelReason::Deadline, Some(status));
            }
            // All calls are looked at: one by one, thousands of deadlines in a row would take the thread.
            sleep(SWEEP).await;
        }
    }
}
