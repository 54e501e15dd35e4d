//! One connection, from its first byte to its last.
//!
//! ```text
//! accepted ─▶ first bytes, TLS, preface ─▶ HTTP/2 ─▶ GOAWAY ─▶ streams finish ─▶ closed
//!             └─ handshake_ms              └─ idle_ms, ping_ms, stall_ms, resets_per_s
//! ```

use crate::config::{Limits, millis};
use crate::gate::Shared;
use crate::given_up::Resets;
use crate::inbox::ConnectionFacts;
use crate::ledger::{Ledger, SMALL_BYTES};
use crate::reactor::Reactor;
use crate::reply::Tracked;
use crate::statistics::{Statistics, down, up};
use crate::transport::{Socket, Traffic, Transport, establish};
use h2::server::{self, Connection as Http2};
use h2::{Ping, PingPong, Reason};
use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout};

const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
const SEND_BUFFER_BYTES: usize = 256 << 10;
const RESET_BURST_SECONDS: u64 = 10;
const STREAMS_PER_TURN: usize = 256;
/// How long what a client still sends of a refused call is passed over. Later it counts as a client's error,
/// of which a connection may make a thousand in its life.
const REFUSED_KEPT: Duration = Duration::from_secs(30);
/// However small, a frame of data that is not read yet takes 256 bytes. Enough for a stream's window of messages
/// of three bytes that Python is slow to take; whoever sends more is cut off.
const SMALL_FRAMES_BYTES: usize = 32 << 20;
const FAREWELL: Duration = Duration::from_secs(1);

/// What the streams of a connection share.
pub(crate) struct Connection {
    /// No other of its thread has it.
    pub(crate) number: u64,
    pub(crate) facts: Arc<ConnectionFacts>,
    pub(crate) ledger: Arc<Ledger>,
    /// One message at a time: however many come compressed, the others keep their turn.
    pub(crate) decompressing: Semaphore,
    statistics: Arc<Statistics>,
    unwritten: Cell<usize>,
    written: Cell<u64>,
    resets: Bucket,
    abusive: Notify,
    #[allow(dead_code, reason = "its drop is what it is for")]
    open: OpenConnection,
}

impl Connection {
    fn new(number: u64, facts: ConnectionFacts, open: OpenConnection) -> Rc<Self> {
        let statistics = open.0.statistics.clone();
        let limits = &open.0.config.limits;
        Rc::new(Self {
            number,
            facts: Arc::new(facts),
            ledger: Ledger::new(statistics.clone(), limits),
            decompressing: Semaphore::new(1),
            statistics,
            unwritten: Cell::new(0),
            written: Cell::new(0),
            resets: Bucket::new(limits.resets_per_s, Instant::now()),
            abusive: Notify::new(),
            open,
        })
    }

    pub(crate) fn hold(&self, bytes: usize) {
        self.unwritten.set(self.unwritten.get().saturating_add(bytes));
        self.statistics.bytes_replies.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.unwritten.set(self.unwritten.get().saturating_sub(bytes));
        self.written.set(self.written.get().wrapping_add(bytes as u64));
        self.statistics.bytes_replies.fetch_sub(bytes as u64, Relaxed);
    }

    /// Bytes of replies that wait for this peer.
    pub(crate) fn unwritten(&self) -> usize {
        self.unwritten.get()
    }

    /// Whether a reply of `bytes` may be held for this peer. Above the limits small ones still pass, until
    /// twice the limit: a heartbeat does not fail for a slow stream beside it.
    pub(crate) fn has_room(&self, bytes: usize, limits: &Limits) -> bool {
        let own = self.unwritten.get() as u64;
        let all = self.statistics.bytes_replies.load(Relaxed);
        let factor = if bytes <= SMALL_BYTES { 2 } else { 1 };
        own <= limits.reply_bytes_per_connection.saturating_mul(factor)
            && all <= limits.reply_bytes.saturating_mul(factor)
    }

    /// The peer reset a stream.
    pub(crate) fn count_reset(&self) {
        up(&self.statistics.resets);
        if !self.resets.holds(Instant::now()) {
            self.abusive.notify_one();
        }
    }
}

/// How many streams a peer has reset lately; so many a second are forgotten again.
struct Bucket {
    per_s: u64,
    held: Cell<u64>,
    since: Cell<Instant>,
}

impl Bucket {
    fn new(per_s: u64, now: Instant) -> Self {
        Self { per_s, held: Cell::new(0), since: Cell::new(now) }
    }

    /// One more; false when that is too many.
    fn holds(&self, now: Instant) -> bool {
        let since = self.since.get();
        let passed_ms = u64::try_from(now.duration_since(since).as_millis()).unwrap_or(u64::MAX);
        let forgotten = passed_ms.saturating_mul(self.per_s) / 1_000;
        if forgotten > 0 {
            // Not now: the time of a part of one counts for the next.
            self.since.set(since + millis(forgotten.saturating_mul(1_000) / self.per_s));
        }
        let held = self.held.get().saturating_sub(forgotten).saturating_add(1);
        self.held.set(held);
        held <= self.per_s.saturating_mul(RESET_BURST_SECONDS)
    }
}

/// Counts a connection as open until its calls and replies have ended, too; the last one to go ends a drain.
pub(crate) struct OpenConnection(Arc<Shared>);

impl OpenConnection {
    /// None when there are too many.
    pub(crate) fn admit(shared: &Arc<Shared>) -> Option<Self> {
        let statistics = &shared.statistics;
        if statistics.connections.fetch_add(1, Relaxed) >= shared.config.limits.connections {
            down(&statistics.connections);
            up(&statistics.connections_refused);
            return None;
        }
        up(&statistics.connections_accepted);
        Some(Self(shared.clone()))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        down(&self.0.statistics.connections);
        self.0.tell_if_drained();
    }
}

/// Serve one accepted socket until it ends.
pub(crate) async fn serve(reactor: Rc<Reactor>, socket: Socket, peer: String, open: OpenConnection) {
    let shared = reactor.shared.clone();
    let limits = &shared.config.limits;
    let number = reactor.written.next_connection();
    let traffic = Traffic::new(shared.statistics.clone(), Resets::new(&reactor.written, number));
    let handshake = async {
        let (transport, facts) =
            establish(socket, peer, shared.config.tls, shared.tls(), traffic.clone()).await.ok()?;
        let http2 = builder(limits).handshake::<_, Tracked>(transport).await.ok()?;
        Some((http2, Connection::new(number, facts, open)))
    };
    let mut draining = shared.drain.subscribe();
    let hurried = async {
        let _ = draining.wait_for(Option::is_some).await;
        sleep(FAREWELL).await;
    };
    let established = tokio::select! {
        established = timeout(millis(limits.handshake_ms), handshake) => established,
        () = hurried => Ok(None),
    };
    let Ok(Some((http2, connection))) = established else {
        up(&shared.statistics.handshakes_failed);
        return;
    };
    Life::new(reactor, connection, http2, traffic).run().await;
}

fn builder(limits: &Limits) -> server::Builder {
    let mut builder = server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(Limits::small(limits.streams_per_connection))
        .max_header_list_size(Limits::small(limits.header_bytes))
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_concurrent_reset_streams(Limits::size(limits.streams_per_connection))
        .reset_stream_duration(REFUSED_KEPT)
        .data_frame_budget(SMALL_FRAMES_BYTES)
        // Those reset before they were looked at, in one read.
        .max_pending_accept_reset_streams(Limits::size(
            limits.resets_per_s.saturating_mul(RESET_BURST_SECONDS),
        ));
    builder
}

/// HTTP/2 on a connection, and the watch over its peer.
struct Life {
    reactor: Rc<Reactor>,
    connection: Rc<Connection>,
    http2: Http2<Transport, Tracked>,
    pings: Option<PingPong>,
    traffic: Rc<Traffic>,
    closes_at: Option<Instant>,
    /// Told to go for idleness, at this time.
    retired: Option<Instant>,
    heard: (u64, Instant),
    pinged: Option<Instant>,
    /// Streams so far.
    streams: u64,
    /// Those there had been when it was last seen to have some, or to have had some since.
    busy: (u64, Instant),
    written: (u64, Instant),
}

impl Life {
    fn new(
        reactor: Rc<Reactor>,
        connection: Rc<Connection>,
        mut http2: Http2<Transport, Tracked>,
        traffic: Rc<Traffic>,
    ) -> Self {
        let now = Instant::now();
        let pings = http2.ping_pong();
        Self {
            reactor,
            connection,
            http2,
            pings,
            traffic,
            closes_at: None,
            retired: None,
            heard: (0, now),
            pinged: None,
            streams: 0,
            busy: (0, now),
            written: (0, now),
        }
    }

    async fn run(mut self) {
        let mut draining = self.reactor.shared.drain.subscribe();
        draining.mark_changed();
        let watch = self.watch_interval();
        let mut look_at = Instant::now() + watch;
        loop {
            let connection = self.connection.clone();
            let closes_at = self.closes_at;
            tokio::select! {
                biased;
                () = poll_fn(|cx| self.poll_streams(cx)) => return,
                Ok(()) = draining.changed() => {
                    if let Some(until) = *draining.borrow_and_update() {
                        self.http2.graceful_shutdown();
                        self.closes_by(until);
                    }
                }
                () = connection.abusive.notified() => {
                    up(&self.reactor.shared.statistics.connections_abusive);
                    self.http2.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                    self.closes_by(Instant::now() + FAREWELL);
                }
                () = sleep_until(closes_at.map_or(look_at, |at| at.min(look_at))) => {
                    let now = Instant::now();
                    look_at = now + watch;
                    if closes_at.is_some_and(|at| at <= now) {
                        return;
                    }
                    if self.is_dead(now) {
                        up(&self.reactor.shared.statistics.connections_dead);
                        return;
                    }
                    if self.is_idle_for_good(now) {
                        return;
                    }
                }
            }
        }
    }

    /// How often to look at the peer: a fraction of the shortest patience.
    fn watch_interval(&self) -> Duration {
        let limits = &self.reactor.shared.config.limits;
        let shortest = limits.idle_ms.min(limits.ping_ms).min(limits.ping_timeout_ms).min(limits.stall_ms);
        millis((shortest / 4).clamp(10, 10_000))
    }

    /// Read, write, and hand on what arrived. Ready when the connection is over.
    fn poll_streams(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.traffic.begin_turn();
        for _ in 0..STREAMS_PER_TURN {
            match self.http2.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    self.streams = self.streams.wrapping_add(1);
                    crate::call::accept(&self.reactor, &self.connection, request, respond);
                }
                Poll::Ready(Some(Err(error))) => {
                    if !error.is_io() && error.is_library() {
                        up(&self.reactor.shared.statistics.connections_abusive);
                    }
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether the peer stopped: silent in spite of a ping, or taking nothing of what waits for it.
    fn is_dead(&mut self, now: Instant) -> bool {
        let limits = &self.reactor.shared.config.limits;
        let written = self.connection.written.get();
        if written != self.written.0 || self.connection.unwritten() == 0 {
            self.written = (written, now);
        } else if now.duration_since(self.written.1) >= millis(limits.stall_ms) {
            return true;
        }
        let read = self.traffic.read.get();
        if read != self.heard.0 {
            self.heard = (read, now);
            self.pinged = None;
        }
        if let Some(pinged) = self.pinged {
            return now.duration_since(pinged) >= millis(limits.ping_timeout_ms);
        }
        let silent = now.duration_since(self.heard.1) >= millis(limits.ping_ms);
        if let (true, Some(pings)) = (silent, &mut self.pings) {
            // The answer to the last ping must be taken before the next can be sent.
            let _ = pings.poll_pong(&mut Context::from_waker(Waker::noop()));
            if pings.send_ping(Ping::opaque()).is_ok() {
                self.pinged = Some(now);
            }
        }
        false
    }

    /// Cut off what is left then, or at an earlier time that was set.
    fn closes_by(&mut self, at: Instant) {
        self.closes_at = Some(self.closes_at.map_or(at, |before| before.min(at)));
    }

    /// Tell a peer without streams to go, after a while; true when it did not. Streams that began before it
    /// heard of that are finished.
    fn is_idle_for_good(&mut self, now: Instant) -> bool {
        let limits = &self.reactor.shared.config.limits;
        if self.http2.has_streams() || self.streams != self.busy.0 {
            self.busy = (self.streams, now);
            return false;
        }
        match self.retired {
            None if now.duration_since(self.busy.1) >= millis(limits.idle_ms) => {
                self.http2.graceful_shutdown();
                self.retired = Some(now);
                false
            }
            None => false,
            Some(at) => now.duration_since(at.max(self.busy.1)) >= millis(limits.ping_timeout_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_may_reset_as_many_streams_as_it_may_for_ever_and_some_more_at_once() {
        let mut now = Instant::now();
        let bucket = Bucket::new(100, now);
        for gap_ms in [15, 4, 13].repeat(10_000) {
            now += millis(gap_ms);
            assert!(bucket.holds(now), "94 a second");
        }
        now += Duration::from_secs(60);
        let at_once = (0..2_000).take_while(|_| bucket.holds(now)).count();
        assert_eq!(at_once, 1_000);
        now += Duration::from_secs(1);
        assert!(bucket.holds(now), "it is forgotten again");
    }
}
