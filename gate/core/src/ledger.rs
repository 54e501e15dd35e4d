//! What requests hold: counted on the account of their connection, and on that of the whole gate.
//!
//! ```text
//! headers   of a request until the call is over           header_bytes_per_connection ─┐
//! messages  until Python has taken them                  inbound_bytes_per_connection ─┴▶ inbound_bytes
//! ```
//!
//! A connection has a share, so that one that fills it leaves the others theirs. Above a limit small
//! requests still pass, until twice the limit: a heartbeat does not fail for a large upload beside it.

use crate::config::Limits;
use crate::statistics::Statistics;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Up to this size a request or a reply is small.
pub(crate) const SMALL_BYTES: usize = 16 << 10;

/// The account of one connection.
pub(crate) struct Ledger {
    statistics: Arc<Statistics>,
    headers: Account,
    messages: Account,
    inbound_bytes: u64,
}

struct Account {
    held: AtomicU64,
    limit: u64,
}

impl Account {
    fn new(limit: u64) -> Self {
        Self { held: AtomicU64::new(0), limit }
    }
}

impl Ledger {
    pub(crate) fn new(statistics: Arc<Statistics>, limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            statistics,
            headers: Account::new(limits.header_bytes_per_connection),
            messages: Account::new(limits.inbound_bytes_per_connection),
            inbound_bytes: limits.inbound_bytes,
        })
    }

    fn account(&self, what: Held) -> &Account {
        match what {
            Held::Headers => &self.headers,
            Held::Messages => &self.messages,
        }
    }

    fn of_all(&self, what: Held) -> &AtomicU64 {
        match what {
            Held::Headers => &self.statistics.bytes_headers,
            Held::Messages => &self.statistics.bytes_inbound,
        }
    }
}

/// What is held.
#[derive(Clone, Copy)]
pub(crate) enum Held {
    Headers,
    Messages,
}

/// Bytes counted until dropped.
pub(crate) struct Charge {
    ledger: Arc<Ledger>,
    what: Held,
    bytes: usize,
}

impl Charge {
    pub(crate) fn new(ledger: &Arc<Ledger>, what: Held) -> Self {
        Self { ledger: ledger.clone(), what, bytes: 0 }
    }

    /// Another of the same account, for nothing yet.
    pub(crate) fn sibling(&self) -> Self {
        Self::new(&self.ledger, self.what)
    }

    /// Count `bytes` instead of what was counted; when that is too much, an error that says of what. Less
    /// than before is never too much.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), String> {
        let ledger = &*self.ledger;
        let (account, of_all) = (ledger.account(self.what), ledger.of_all(self.what));
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes <= before {
            let shrunk = (before - bytes) as u64;
            of_all.fetch_sub(shrunk, Relaxed);
            account.held.fetch_sub(shrunk, Relaxed);
            return Ok(());
        }
        let grown = (bytes - before) as u64;
        of_all.fetch_add(grown, Relaxed);
        let own = account.held.fetch_add(grown, Relaxed).saturating_add(grown);
        let factor = if bytes <= SMALL_BYTES { 2 } else { 1 };
        if own > account.limit.saturating_mul(factor) {
            return Err(match self.what {
                Held::Headers => format!(
                    "more than {} bytes of headers are held by this connection (header_bytes_per_connection)",
                    account.limit
                ),
                Held::Messages => format!(
                    "more than {} bytes of requests of this connection are waiting (inbound_bytes_per_connection)",
                    account.limit
                ),
            });
        }
        if ledger.statistics.held() > ledger.inbound_bytes.saturating_mul(factor) {
            let limit = ledger.inbound_bytes;
            return Err(format!("more than {limit} bytes of requests are waiting (inbound_bytes)"));
        }
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.ledger.of_all(self.what).fetch_sub(self.bytes as u64, Relaxed);
        self.ledger.account(self.what).held.fetch_sub(self.bytes as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(own: u64, all: u64) -> (Arc<Ledger>, Arc<Statistics>) {
        let limits = Limits { inbound_bytes: all, inbound_bytes_per_connection: own, ..Limits::default() };
        let statistics = Arc::new(Statistics::default());
        (Ledger::new(statistics.clone(), &limits), statistics)
    }

    #[test]
    fn what_is_counted_is_given_back_to_the_byte() {
        let (ledger, statistics) = ledger(100_000, 100_000);
        let mut charge = Charge::new(&ledger, Held::Messages);
        for bytes in [10, 90_000, 500, 100_000, 0, 7] {
            assert_eq!(charge.set(bytes), Ok(()));
            assert_eq!(statistics.bytes_inbound.load(Relaxed), bytes as u64);
        }
        assert!(charge.set(100_001).is_err());
        drop(charge);
        assert_eq!(statistics.bytes_inbound.load(Relaxed), 0);
        assert_eq!(ledger.messages.held.load(Relaxed), 0);
    }

    #[test]
    fn above_the_limits_small_ones_pass_until_twice_and_less_always_does() {
        for (own, all, says) in
            [(40_000, 1_000_000, "_per_connection"), (1_000_000, 40_000, "(inbound_bytes)")]
        {
            let (ledger, _) = ledger(own, all);
            let mut large = Charge::new(&ledger, Held::Messages);
            assert!(large.set(50_000).is_err_and(|text| text.contains(says)));
            assert_eq!(large.set(45_000), Ok(()));
            let (mut small, mut more) = (large.sibling(), large.sibling());
            assert_eq!(small.set(SMALL_BYTES), Ok(()));
            assert_eq!(more.set(SMALL_BYTES), Ok(()));
            assert!(large.sibling().set(SMALL_BYTES).is_err());
        }
    }

    #[test]
    fn headers_have_a_limit_of_their_own() {
        let (ledger, statistics) = ledger(1 << 30, 1 << 30);
        let mut held = Charge::new(&ledger, Held::Headers);
        assert!(held.set(1 << 28).is_err_and(|text| text.contains("header_bytes_per_connection")));
        let mut message = Charge::new(&ledger, Held::Messages);
        assert_eq!(message.set(1 << 27), Ok(()));
        let counted = || (statistics.bytes_headers.load(Relaxed), statistics.bytes_inbound.load(Relaxed));
        assert_eq!((counted(), statistics.held()), ((1 << 28, 1 << 27), (1 << 28) + (1 << 27)));
        drop((held, message));
        assert_eq!(counted(), (0, 0));
    }
}
