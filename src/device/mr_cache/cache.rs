//! A cache of registrations of one device. Knows nothing of verbs.
//!
//! A registration is of whole pages, since adapters pin whole pages. It is shared if the requested
//! range lies inside the range that it was made for, or covers exactly the same pages. Sharing any
//! other overlap would keep freed memory pinned, and could later serve stale pages for a new buffer
//! at the same addresses.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use super::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A requested range of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    bytes: Range<usize>,
    pages: Range<usize>,
}

impl Span {
    /// Makes the span of `len` bytes, at least one, from `addr`, with pages of `page` bytes, a
    /// power of two. Returns `None` if the last page ends after the last possible address.
    pub(crate) fn new(addr: usize, len: usize, page: usize) -> Option<Self> {
        let end = addr.checked_add(len)?;
        let pages = addr & !(page - 1)..end.checked_next_multiple_of(page)?;
        Some(Self { bytes: addr..end, pages })
    }

    /// Returns the whole pages.
    pub(crate) fn pages(&self) -> Range<usize> {
        self.pages.clone()
    }

    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> Range<usize> {
        self.bytes.clone()
    }

    /// Returns the logarithm of its size.
    fn class(&self) -> u32 {
        self.pages.len().max(1).ilog2()
    }

    /// Whether a registration that was made for `self` may serve `requested`.
    pub(crate) fn serves(&self, requested: &Self) -> bool {
        let inside = self.bytes.start <= requested.bytes.start && requested.bytes.end <= self.bytes.end;
        inside || self.pages == requested.pages
    }
}

/// Registrations `R`, distinguished by their addresses and by `K`, how they are made.
pub(crate) struct Cache<K, R>(Arc<CacheState<K, R>>);

struct CacheState<K, R> {
    list: Mutex<List<K, R>>,
    /// Notified when a registration that was being made is ready or has failed, and at the end of
    /// [`Cache::renew`].
    settled: Condvar,
}

/// Size class, first page, and a unique number.
///
/// A class has the spans of 2^n to 2^(n+1) - 1 bytes. In order of their first pages alone, one large
/// span would make every search look at all small ones below the address.
type Place = (u32, usize, u64);

struct List<K, R> {
    entries: BTreeMap<Place, Entry<K, R>>,
    next: u64,
    /// The one that was made or found last. NCCL registers the same memory for one connection after the
    /// other.
    last: Place,
    /// A bit for each size class that has ever had an entry.
    classes: usize,
    /// All registrations are being made again.
    renewing: bool,
}

struct Entry<K, R> {
    key: K,
    span: Span,
    /// `None` while it is being made.
    made: Option<R>,
    users: usize,
}

/// A share in a registration. When the last one is dropped the registration is too, before `drop`
/// returns.
pub(crate) struct Held<K, R> {
    state: Arc<CacheState<K, R>>,
    place: Place,
}

impl<K: PartialEq, R> Cache<K, R> {
    /// Empty.
    pub(crate) fn new() -> Self {
        let list = List { entries: BTreeMap::new(), next: 0, last: (0, 0, 0), classes: 0, renewing: false };
        Self(Arc::new(CacheState { list: Mutex::new(list), settled: Condvar::new() }))
    }

    /// Returns a share in a registration that serves `span`, and the result of `read` on it: an
    /// existing one, else what `make` makes for the span's pages. If one that would serve is being
    /// made, the call waits for it. No call waits for the registration of other memory.
    ///
    /// # Errors
    /// Those of `make`, which leave nothing behind.
    pub(crate) fn get<V, E>(
        &self,
        key: K,
        span: Span,
        make: impl FnOnce() -> Result<R, E>,
        read: impl FnOnce(&R) -> V,
    ) -> Result<(Held<K, R>, V), E> {
        let held = |place| Held { state: Arc::clone(&self.0), place };
        let mut list = self.0.lock_settled();
        loop {
            match list.find(&key, &span) {
                None => break,
                Some((place, Entry { made: Some(made), users, .. })) => {
                    *users += 1;
                    return Ok((held(place), read(made)));
                }
                Some(_) => {
                    self.0.settled.wait(&mut list);
                    self.0.settle(&mut list);
                }
            }
        }
        let place = (span.class(), span.pages.start, list.next);
        list.next += 1;
        list.last = place;
        list.classes |= 1 << span.class();
        list.entries.insert(place, Entry { key, span, made: None, users: 1 });
        drop(list);
        let making = Making { state: &self.0, place };
        let made = make()?;
        let value = read(&made);
        making.done(made);
        Ok((held(place), value))
    }

    /// Returns the result of `read` on a registration whose pages cover these bytes.
    pub(crate) fn covering<V>(&self, bytes: &Range<usize>, read: impl FnOnce(&R) -> V) -> Option<V> {
        let list = self.0.lock_settled();
        let covers = |pages: &Range<usize>| pages.start <= bytes.start && bytes.end <= pages.end;
        let mut near = list.near(bytes.start);
        near.find_map(|(_, entry)| entry.made.as_ref().filter(|_| covers(&entry.span.pages))).map(read)
    }

    /// Replaces each registration by the one that `again` makes of it. When all are made, calls
    /// `commit`, and then `retire` for each earlier one. Until then other calls wait, and so do
    /// drops of last shares.
    ///
    /// # Errors
    /// Those of `again` and `commit`: the earlier registrations stay.
    pub(crate) fn renew<E>(
        &self,
        again: impl Fn(&K, &Span, &R) -> Result<R, E>,
        commit: impl FnOnce() -> Result<(), E>,
        retire: impl FnMut(R),
    ) -> Result<(), E>
    where
        K: Clone,
    {
        let mut list = self.0.lock_settled();
        while list.entries.values().any(|entry| entry.made.is_none()) {
            self.0.settled.wait(&mut list);
            self.0.settle(&mut list);
        }
        list.renewing = true;
        let taken: Vec<_> =
            list.entries.iter_mut().filter_map(|(place, entry)| Some((*place, entry.made.take()?))).collect();
        let how: Vec<_> =
            list.entries.values().map(|entry| (entry.key.clone(), entry.span.clone())).collect();
        drop(list);
        let mut renewal = Renewal { state: &self.0, registrations: taken };
        let made = renewal.registrations.iter().zip(&how);
        let made = made.map(|((place, old), (key, span))| Ok((*place, again(key, span, old)?)));
        let made = made.collect::<Result<Vec<_>, E>>()?;
        commit()?;
        let earlier = std::mem::replace(&mut renewal.registrations, made);
        drop(renewal);
        earlier.into_iter().map(|(_, old)| old).for_each(retire);
        Ok(())
    }

    /// Returns the number of registrations.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().entries.len()
    }

    /// Returns the number of registrations that a search looks at if none serves.
    #[cfg(test)]
    pub(crate) fn looked_at(&self, addr: usize) -> usize {
        self.0.lock().near(addr).count()
    }
}

impl<K, R> List<K, R> {
    /// Returns the registrations that may cover this address, the smallest class first: in each class
    /// those that begin at most its size below the address.
    fn near(&self, addr: usize) -> impl Iterator<Item = (&Place, &Entry<K, R>)> {
        let classes = (0..usize::BITS).filter(|class| self.classes >> class & 1 == 1);
        classes.flat_map(move |class| {
            let largest = usize::MAX >> (usize::BITS - 1 - class);
            let first = addr.saturating_sub(largest);
            self.entries.range((class, first, 0)..=(class, addr, u64::MAX)).rev()
        })
    }
}

impl<K: PartialEq, R> List<K, R> {
    /// Finds a registration that serves; one that is being made if there is no other.
    fn find(&mut self, key: &K, span: &Span) -> Option<(Place, &mut Entry<K, R>)> {
        let serves = |entry: &Entry<K, R>| entry.key == *key && entry.span.serves(span);
        if !self.entries.get(&self.last).is_some_and(|entry| entry.made.is_some() && serves(entry)) {
            let mut found = None;
            for (place, entry) in self.near(span.pages.start).filter(|(_, entry)| serves(entry)) {
                found = Some(*place);
                if entry.made.is_some() {
                    break;
                }
            }
            self.last = found?;
        }
        self.entries.get_mut(&self.last).map(|entry| (self.last, entry))
    }
}

impl<K, R> CacheState<K, R> {
    fn lock(&self) -> MutexGuard<'_, List<K, R>> {
        self.list.lock()
    }

    /// Locks the list while no renewal is in progress.
    fn lock_settled(&self) -> MutexGuard<'_, List<K, R>> {
        let mut list = self.lock();
        self.settle(&mut list);
        list
    }

    /// Waits for the end of a renewal.
    fn settle(&self, list: &mut MutexGuard<'_, List<K, R>>) {
        while list.renewing {
            self.settled.wait(list);
        }
    }
}

/// The registrations of a renewal in progress. They return to their entries, also after a panic.
struct Renewal<'a, K, R> {
    state: &'a CacheState<K, R>,
    registrations: Vec<(Place, R)>,
}

impl<K, R> Drop for Renewal<'_, K, R> {
    fn drop(&mut self) {
        let mut list = self.state.lock();
        for (place, registration) in self.registrations.drain(..) {
            if let Some(entry) = list.entries.get_mut(&place) {
                entry.made = Some(registration);
            }
        }
        list.renewing = false;
        drop(list);
        self.state.settled.notify_all();
    }
}

impl<K, R> Held<K, R> {
    /// Returns the result of `read` on the registration.
    pub(crate) fn read<V>(&self, read: impl FnOnce(&R) -> V) -> Option<V> {
        let list = self.state.lock_settled();
        list.entries.get(&self.place)?.made.as_ref().map(read)
    }
}

/// An entry whose registration is being made. Removed unless that succeeds, also after a panic.
struct Making<'a, K, R> {
    state: &'a CacheState<K, R>,
    place: Place,
}

impl<K, R> Making<'_, K, R> {
    fn done(self, made: R) {
        if let Some(entry) = self.state.lock().entries.get_mut(&self.place) {
            entry.made = Some(made);
        }
    }
}

impl<K, R> Drop for Making<'_, K, R> {
    fn drop(&mut self) {
        let mut list = self.state.lock();
        if list.entries.get(&self.place).is_some_and(|entry| entry.made.is_none()) {
            list.entries.remove(&self.place);
        }
        drop(list);
        self.state.settled.notify_all();
    }
}

impl<K, R> Drop for Held<K, R> {
    fn drop(&mut self) {
        let mut list = self.state.lock_settled();
        let Some(entry) = list.entries.get_mut(&self.place) else { return };
        entry.users -= 1;
        let last = if entry.users == 0 { list.entries.remove(&self.place) } else { None };
        // Deregistering is slow: not under the lock.
        drop(list);
        drop(last);
    }
}

impl<K, R> fmt::Debug for Cache<K, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cache")
    }
}

impl<K, R> fmt::Debug for Held<K, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({:#x})", self.place.1)
    }
}
