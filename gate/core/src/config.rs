//! What a gate is told when it is made: methods, addresses, TLS, limits.

use crate::tls::TlsSource;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How the messages of a method flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One request, one reply.
    Unary,
    /// One request, any number of replies.
    ServerStream,
    /// Any number both ways.
    Bidi,
}

/// Whether a connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// Never; the first byte is not looked at.
    Off,
    /// The first byte of a connection decides.
    Auto,
    /// Always; plaintext is told so and closed.
    Required,
}

/// Everything a gate needs to know.
pub struct Config {
    /// Path and kind of every method; an event names a method by its place here. `/service/*` takes what
    /// a service does not list.
    pub methods: Vec<(String, Kind)>,
    /// TCP hosts to listen on, each with its addresses; port 0 takes a free one, the same for all of a host.
    pub tcp: Vec<Vec<SocketAddr>>,
    /// Unix sockets to listen on (never TLS).
    pub unix: Vec<PathBuf>,
    /// Share the TCP ports with other processes (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// Native threads; each connection belongs to one of them.
    pub threads: usize,
    /// Which connections are encrypted.
    pub tls: TlsMode,
    /// Certificate and key, unless `tls` is off.
    pub certificate: Option<TlsSource>,
    /// Bounds.
    pub limits: Limits,
}

macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $name:ident = $default:expr;)+) => {
        /// The bounds of a gate. Sizes are bytes; names that end in `_ms` are milliseconds.
        #[derive(Clone, Debug)]
        pub struct Limits {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl Limits {
            /// Change one bound by its name.
            pub fn set(&mut self, name: &str, value: u64) -> Result<(), String> {
                match name {
                    $(stringify!($name) => self.$name = value,)+
                    _ => return Err(format!("no limit named {name:?}; there are {}", [$(stringify!($name)),+].join(", "))),
                }
                Ok(())
            }
        }
    };
}

const MIB: u64 = 1 << 20;
const SECOND_US: u64 = 1_000_000;
const YEAR_MS: u64 = 365 * 86_400_000;

limits! {
    /// Open connections; one more is closed at once.
    connections = 50_000;
    /// Open streams of one connection; one more is refused (REFUSED_STREAM).
    streams_per_connection = 4_096;
    /// Open calls of all connections; one more is answered RESOURCE_EXHAUSTED.
    calls = 400_000;
    /// Header list of a request, names and values and 32 bytes each, as HTTP/2 counts.
    header_bytes = 65_536;
    /// Headers of the open calls of one connection; one more call is answered RESOURCE_EXHAUSTED.
    header_bytes_per_connection = 16 * MIB;
    /// One message of a request, also after decompression.
    message_bytes = 130 * MIB;
    /// Requests being received, events Python has not taken and headers of open calls, of all connections.
    inbound_bytes = 512 * MIB;
    /// Requests of one connection being received or not taken by Python: its share of `inbound_bytes`.
    inbound_bytes_per_connection = 384 * MIB;
    /// Messages of one bidirectional stream that Python has not taken; above it the stream is not read.
    unread_bytes_per_stream = MIB;
    /// Messages sent on a stream that goes on and not yet written; above it `send` says no.
    send_bytes_per_stream = 4 * MIB;
    /// Replies of one connection not yet written; above it calls are answered RESOURCE_EXHAUSTED.
    reply_bytes_per_connection = 64 * MIB;
    /// The same over all connections.
    reply_bytes = 1_024 * MIB;
    /// Streams a connection may reset per second, ten times that at once; then it is closed (rapid reset).
    resets_per_s = 200;
    /// TLS and HTTP/2 preface must be through by then.
    handshake_ms = 10_000;
    /// A message must have arrived by then, plus one second for every 64 KiB of it; one of which nothing came
    /// for this long is given up.
    message_ms = 60_000;
    /// A connection without open streams is told to go after this.
    idle_ms = 120_000;
    /// A silent peer is pinged after this.
    ping_ms = 30_000;
    /// A pinged peer that stays silent this long is dead.
    ping_timeout_ms = 20_000;
    /// A peer that takes no byte this long is cut off, and a reply of which no byte is taken is given up.
    stall_ms = 120_000;
    /// How long a thread stays awake for the next word to or from a lone caller; 0 = it sleeps at once.
    busy_poll_us = 500;
    /// How long after a call's deadline the gate answers DEADLINE_EXCEEDED itself.
    deadline_grace_ms = 250;
}

impl Limits {
    /// A bound in bytes or pieces as this machine counts them.
    pub(crate) fn size(value: u64) -> usize {
        usize::try_from(value).unwrap_or(usize::MAX)
    }

    /// A bound for fields of HTTP/2 that have 32 bits.
    pub(crate) fn small(value: u64) -> u32 {
        u32::try_from(value).unwrap_or(u32::MAX)
    }

    fn durations(&self) -> [(&'static str, u64); 7] {
        [
            ("handshake_ms", self.handshake_ms),
            ("message_ms", self.message_ms),
            ("idle_ms", self.idle_ms),
            ("ping_ms", self.ping_ms),
            ("ping_timeout_ms", self.ping_timeout_ms),
            ("stall_ms", self.stall_ms),
            ("deadline_grace_ms", self.deadline_grace_ms),
        ]
    }

    /// Say what does not fit together.
    pub fn check(&self) -> Result<(), String> {
        if self.message_bytes > self.inbound_bytes {
            return Err(format!(
                "limit message_bytes ({}) is larger than inbound_bytes ({}): such a message could never arrive",
                self.message_bytes, self.inbound_bytes
            ));
        }
        if self.message_bytes > self.inbound_bytes_per_connection {
            return Err(format!(
                "limit message_bytes ({}) is larger than inbound_bytes_per_connection ({}): such a message could \
                 never arrive",
                self.message_bytes, self.inbound_bytes_per_connection
            ));
        }
        if let Some((name, value)) = self.durations().into_iter().find(|(_, value)| *value > YEAR_MS) {
            return Err(format!("limit {name} is {value} ms, more than a year"));
        }
        if self.busy_poll_us > SECOND_US {
            return Err(format!(
                "limit busy_poll_us is {}, more than a second: a core would be busy that long for nothing",
                self.busy_poll_us
            ));
        }
        if self.message_bytes >= u64::from(u32::MAX) {
            return Err("limit message_bytes: a gRPC message has a length of 32 bits".into());
        }
        for (name, value) in
            [("connections", self.connections), ("streams_per_connection", self.streams_per_connection)]
        {
            if value == 0 {
                return Err(format!("limit {name} is 0: nobody could connect"));
            }
        }
        if self.calls == 0 || self.calls > 4_000_000 {
            return Err(format!("limit calls is {}, not 1 to 4000000", self.calls));
        }
        Ok(())
    }
}

/// A limit in milliseconds as a duration.
pub(crate) fn millis(value: u64) -> Duration {
    Duration::from_millis(value)
}
