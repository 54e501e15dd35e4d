//! Counters of a gate: cheap to bump from any thread, read as one frozen set.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {
        /// The live counters.
        #[derive(Default)]
        pub struct Statistics {
            $($(#[doc = $doc])+ pub $name: AtomicU64,)+
        }

        impl Statistics {
            /// Names and values at this moment.
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Relaxed)),)+]
            }
        }
    };
}

counters! {
    /// Connections open now.
    connections;
    /// Connections accepted since the start.
    connections_accepted;
    /// Connections closed at once, for one too many.
    connections_refused;
    /// Connections accepted that came with TLS.
    connections_tls;
    /// Connections that ended before HTTP/2 was there: garbage, TLS errors, time.
    handshakes_failed;
    /// Connections closed for abuse of the protocol.
    connections_abusive;
    /// Connections closed because the peer was silent, or took no bytes.
    connections_dead;
    /// Calls open now.
    calls;
    /// Calls handed to Python since the start.
    calls_accepted;
    /// Calls the gate answered itself for a limit.
    calls_refused;
    /// Calls that could not be read: not gRPC, unknown method, framing, size, compression.
    calls_invalid;
    /// Replies given up because no byte of them was taken for long.
    replies_stalled;
    /// Calls the client gave up.
    calls_cancelled;
    /// Calls the gate ended at their deadline.
    calls_expired;
    /// Streams reset by peers.
    resets;
    /// Bytes of requests being received or waiting for Python, without the headers of calls.
    bytes_inbound;
    /// Bytes of headers of open calls.
    bytes_headers;
    /// Bytes of replies waiting to be written.
    bytes_replies;
    /// Bytes read from sockets.
    bytes_read;
    /// Bytes written to sockets.
    bytes_written;
    /// Times a thread stayed awake for a lone caller.
    busy_polls;
    /// Parts of the gate that failed by a bug and were started again.
    restarts;
}

impl Statistics {
    /// Bytes that requests hold, headers and all.
    pub(crate) fn held(&self) -> u64 {
        self.bytes_inbound.load(Relaxed).saturating_add(self.bytes_headers.load(Relaxed))
    }
}

/// One up.
pub(crate) fn up(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// One down.
pub(crate) fn down(counter: &AtomicU64) {
    counter.fetch_sub(1, Relaxed);
}
