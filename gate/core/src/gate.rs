//! The gate: native threads that serve, an inbox to take from, an outbox to answer into.

use crate::config::{Config, Kind, TlsMode};
use crate::connection::{self, OpenConnection};
use crate::inbox::{Event, EventKind, Inbox};
use crate::listen::{self, Accepted, Bound};
use crate::lone_caller::LoneCaller;
use crate::reactor::{Reactor, thread_of};
use crate::reply::Outgoing;
use crate::statistics::{Statistics, up};
use crate::tls::TlsSource;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::rustls::ServerConfig;

const THREADS_MAX: usize = 64;
const NOTES_MAX: usize = 32;
/// Beyond any deadline that matters.
pub(crate) const FAR: Duration = Duration::from_secs(365 * 86_400);

/// Why a gate cannot start.
#[derive(Debug)]
pub enum StartError {
    /// A setting that does not fit.
    Config(String),
    /// An address that cannot be had.
    Io(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(text) => f.write_str(text),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What the threads of a gate share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    methods: HashMap<String, (u16, Kind)>,
    pub(crate) inbox: Inbox,
    pub(crate) lone_caller: Arc<LoneCaller>,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) drain: watch::Sender<Option<Instant>>,
    stop: watch::Sender<bool>,
    told_drained: AtomicBool,
    tls: RwLock<Option<Arc<ServerConfig>>>,
    notes: Mutex<VecDeque<String>>,
}

impl Shared {
    /// The method of a path: its own, or `/service/*`, which takes what a service does not list.
    pub(crate) fn method(&self, path: &str) -> Option<(u16, Kind)> {
        self.methods.get(path).copied().or_else(|| {
            let (service, _) = path.rsplit_once('/')?;
            self.methods.get(&format!("{service}/*")).copied()
        })
    }

    /// The TLS configuration new connections get.
    pub(crate) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keep a line for the log of whoever runs the gate.
    pub(crate) fn note(&self, text: &str) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < NOTES_MAX && notes.back().is_none_or(|last| last != text) {
            notes.push_back(text.to_owned());
        }
    }

    /// Once, when the gate drains and the last connection is closed.
    pub(crate) fn tell_if_drained(&self) {
        let over = self.drain.borrow().is_some() && self.statistics.connections.load(Relaxed) == 0;
        if over && !self.told_drained.swap(true, AcqRel) {
            self.inbox.push(Event::new(EventKind::Drained, 0, 0));
        }
    }
}

/// What a thread is sent.
pub(crate) enum ToReactor {
    /// Replies to pass on.
    Replies(Vec<Outgoing>),
    /// A connection to serve.
    Connection(Accepted, String),
}

/// A running gate. Dropping it stops it.
pub struct Gate {
    shared: Arc<Shared>,
    outboxes: Vec<UnboundedSender<ToReactor>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    addresses: Vec<SocketAddr>,
    process: u32,
}

impl Gate {
    /// Bind, and serve in threads of its own.
    pub fn start(config: Config) -> Result<Self, StartError> {
        config.limits.check().map_err(StartError::Config)?;
        if !(1..=THREADS_MAX).contains(&config.threads) {
            return Err(StartError::Config(format!("threads is {}, not 1 to {THREADS_MAX}", config.threads)));
        }
        let tls = match (&config.certificate, config.tls) {
            (_, TlsMode::Off) => None,
            (Some(source), _) => Some(source.build().map_err(StartError::Config)?),
            (None, _) => return Err(StartError::Config("TLS needs a certificate and its key".into())),
        };
        let (bound, addresses) = listen::bind(&config)?;
        let methods =
            config.methods.iter().zip(0..).map(|((path, kind), n)| (path.clone(), (n, *kind))).collect();
        let threads = config.threads;
        let shared = Arc::new(Shared {
            config,
            methods,
            inbox: Inbox::new()?,
            lone_caller: LoneCaller::new(),
            statistics: Arc::default(),
            drain: watch::Sender::new(None),
            stop: watch::Sender::new(false),
            told_drained: AtomicBool::new(false),
            tls: RwLock::new(tls),
            notes: Mutex::default(),
        });
        let (outboxes, queues): (Vec<_>, Vec<_>) = (0..threads).map(|_| unbounded_channel()).unzip();
        let process = std::process::id();
        let gate = Self { shared, outboxes, threads: Mutex::default(), addresses, process };
        let mut bound = bound;
        for (thread, queue) in queues.into_iter().enumerate() {
            gate.spawn(thread, queue, std::mem::take(&mut bound))?;
        }
        Ok(gate)
    }

    fn spawn(&self, thread: usize, queue: UnboundedReceiver<ToReactor>, bound: Vec<Bound>) -> io::Result<()> {
        let shared = self.shared.clone();
        let outboxes = self.outboxes.clone();
        let runtime = move || {
            Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default())
        };
        let (ready, is_ready) = std::sync::mpsc::channel();
        let serving =
            std::thread::Builder::new().name(format!("gate-{thread}")).spawn(move || match runtime() {
                Ok(runtime) => {
                    let _ = ready.send(Ok(()));
                    runtime.block_on(run(shared, thread, queue, bound, outboxes));
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            })?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(serving);
        is_ready.recv().unwrap_or_else(|_| Err(io::Error::other("a thread of the gate ended at its start")))
    }

    /// TCP addresses with their real ports, in the order asked for.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What happened, and the descriptor that says when.
    pub fn inbox(&self) -> &Inbox {
        &self.shared.inbox
    }

    /// Wait for events without sleeping while a lone caller is served, `limit` at most; how long it was.
    pub fn linger(&self, limit: Duration) -> Duration {
        let budget = Duration::from_micros(self.shared.config.limits.busy_poll_us);
        self.shared.lone_caller.linger(&self.shared.inbox, limit.min(budget))
    }

    /// The counters.
    pub fn statistics(&self) -> &Statistics {
        &self.shared.statistics
    }

    /// Bytes a stream may hold that were sent and not written.
    pub fn send_bytes_per_stream(&self) -> u64 {
        self.shared.config.limits.send_bytes_per_stream
    }

    /// Lines for the log since the last time.
    pub fn notes(&self) -> Vec<String> {
        self.shared.notes.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }

    /// Hand over replies. Never waits.
    pub fn reply(&self, replies: Vec<Outgoing>) {
        if let [only] = self.outboxes.as_slice() {
            // A thread that is gone has nobody left to answer.
            let _ = only.send(ToReactor::Replies(replies));
            return;
        }
        let mut parts: Vec<Vec<Outgoing>> = self.outboxes.iter().map(|_| Vec::new()).collect();
        for reply in replies {
            if let Some(part) = parts.get_mut(thread_of(reply.id)) {
                part.push(reply);
            }
        }
        for (outbox, part) in self.outboxes.iter().zip(parts) {
            if !part.is_empty() {
                let _ = outbox.send(ToReactor::Replies(part));
            }
        }
    }

    /// Give new connections another certificate; those open keep theirs.
    pub fn reload(&self, source: &TlsSource) -> Result<(), String> {
        if self.shared.config.tls == TlsMode::Off {
            return Err("TLS is off: there is no certificate to replace".into());
        }
        let config = source.build()?;
        *self.shared.tls.write().unwrap_or_else(PoisonError::into_inner) = Some(config);
        Ok(())
    }

    /// Take no more connections, tell the clients to go, let calls finish for `grace`, close. A `Drained`
    /// event follows. Said again, it may be made shorter, not longer.
    pub fn drain(&self, grace: Duration) {
        let by = Instant::now() + grace.min(FAR);
        self.shared.drain.send_if_modified(|until| {
            let is_sooner = until.is_none_or(|before| by < before);
            if is_sooner {
                *until = Some(by);
            }
            is_sooner
        });
        self.shared.tell_if_drained();
    }

    /// Stop at once and wait for the threads; the inbox then holds a `Cancel` for every call that was open and
    /// every reply that was not written. In a fork of the process, which has none of them, nothing.
    pub fn close(&self) {
        if std::process::id() != self.process {
            return;
        }
        self.shared.stop.send_replace(true);
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads.into_iter().chain(self.shared.lone_caller.end()) {
            // A thread that panicked is as over as one that ended.
            let _ = thread.join();
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            self.shared.stop.send_replace(true);
            self.shared.lone_caller.end();
        }
    }
}

/// The life of one thread.
async fn run(
    shared: Arc<Shared>,
    thread: usize,
    queue: UnboundedReceiver<ToReactor>,
    bound: Vec<Bound>,
    outboxes: Vec<UnboundedSender<ToReactor>>,
) {
    let mut stop = shared.stop.subscribe();
    let reactor = Reactor::new(shared.clone(), thread);
    let mailbox = Rc::new(RefCell::new(Mailbox { queue, replies: Vec::new().into_iter() }));
    for listening in bound {
        tokio::task::spawn_local(listen::accept(listening, shared.clone(), outboxes.clone()));
    }
    keep(&shared, {
        let reactor = reactor.clone();
        move || reactor.clone().watch_resets()
    });
    keep(&shared, {
        let reactor = reactor.clone();
        move || reactor.clone().watch_deadlines()
    });
    keep(&shared, {
        let reactor = reactor.clone();
        move || {
            let reactor = reactor.clone();
            async move { reactor.busy_poll.run().await }
        }
    });
    keep(&shared, {
        let (reactor, mailbox) = (reactor.clone(), mailbox.clone());
        move || pass_on(reactor.clone(), mailbox.clone())
    });
    let _ = stop.wait_for(|stop| *stop).await;
    mailbox.borrow_mut().pass_replies(&reactor);
    reactor.end_all();
}

/// Run a part of the gate; one that fails by a bug is started again.
fn keep<F: Future<Output = ()> + 'static>(shared: &Arc<Shared>, part: impl Fn() -> F + 'static) {
    let shared = shared.clone();
    tokio::task::spawn_local(async move {
        while tokio::task::spawn_local(part()).await.is_err() {
            up(&shared.statistics.restarts);
            shared.note("a part of the gate failed by a bug and was started again; please report it");
        }
    });
}

/// What a thread was sent and has not looked at. It outlives a bug: the replies after the one it hit are passed
/// on all the same.
struct Mailbox {
    queue: UnboundedReceiver<ToReactor>,
    replies: std::vec::IntoIter<Outgoing>,
}

impl Mailbox {
    /// Pass on the replies that are there already.
    fn pass_replies(&mut self, reactor: &Rc<Reactor>) {
        for reply in self.replies.by_ref() {
            reactor.answer(reply);
        }
        while let Ok(next) = self.queue.try_recv() {
            if let ToReactor::Replies(replies) = next {
                for reply in replies {
                    reactor.answer(reply);
                }
            }
        }
    }
}

/// Pass replies and connections on to where they belong.
async fn pass_on(reactor: Rc<Reactor>, mailbox: Rc<RefCell<Mailbox>>) {
    loop {
        let reply = mailbox.borrow_mut().replies.next();
        if let Some(reply) = reply {
            reactor.answer(reply);
            continue;
        }
        let next = std::future::poll_fn(|cx| mailbox.borrow_mut().queue.poll_recv(cx)).await;
        match next {
            None => return,
            Some(ToReactor::Replies(replies)) => mailbox.borrow_mut().replies = replies.into_iter(),
            Some(ToReactor::Connection(accepted, peer)) => {
                let Some(open) = OpenConnection::admit(&reactor.shared) else { continue };
                match accepted.adopt() {
                    Ok(socket) => {
                        tokio::task::spawn_local(connection::serve(reactor.clone(), socket, peer, open));
                    }
                    Err(error) => reactor.shared.note(&format!("cannot serve a connection: {error}")),
                }
            }
        }
    }
}
