//! Policies that keep freed allocations whole, or do not keep them.

use std::collections::BTreeMap;

use super::{Driver, Policy};

/// The unit that CUDA programs round to.
const UNIT: u64 = 512;

fn in_units(size: u64) -> u64 {
    size.saturating_add(UNIT - 1) / UNIT * UNIT
}

/// Every allocation is one of the driver's.
#[derive(Debug)]
pub(crate) struct NoCache {
    driver: Driver,
    live: BTreeMap<u32, u64>,
}

impl NoCache {
    pub(crate) fn new(driver: Driver) -> Self {
        Self { driver, live: BTreeMap::new() }
    }
}

impl Policy for NoCache {
    fn name(&self) -> &'static str {
        "no-cache"
    }

    fn allocate(&mut self, number: u32, size: u64, _stream: u32) -> bool {
        let size = in_units(size);
        let given = self.driver.obtain(size);
        if given {
            self.live.insert(number, size);
        }
        given
    }

    fn free(&mut self, number: u32) {
        if let Some(size) = self.live.remove(&number) {
            self.driver.give_back(size);
        }
    }

    fn driver(&self) -> &Driver {
        &self.driver
    }
}

/// Freed allocations wait for a request of their stream and their rounded size.
#[derive(Debug)]
pub(crate) struct BySize {
    name: &'static str,
    /// What a request becomes.
    round: fn(u64) -> u64,
    driver: Driver,
    /// Stream and size of what is live.
    live: BTreeMap<u32, (u32, u64)>,
    /// How many of a stream and a size are free.
    free: BTreeMap<(u32, u64), u64>,
}

impl BySize {
    fn new(name: &'static str, round: fn(u64) -> u64, driver: Driver) -> Self {
        Self { name, round, driver, live: BTreeMap::new(), free: BTreeMap::new() }
    }

    /// Sizes rounded up to 512 bytes: CuPy's pool without its splitting.
    pub(crate) fn exact(driver: Driver) -> Self {
        Self::new("exact-size", in_units, driver)
    }

    /// Sizes rounded up to powers of two: the buddy that never splits.
    pub(crate) fn powers_of_two(driver: Driver) -> Self {
        let round = |size: u64| size.max(UNIT).checked_next_power_of_two().unwrap_or(u64::MAX);
        Self::new("power-of-two", round, driver)
    }
}

impl Policy for BySize {
    fn name(&self) -> &'static str {
        self.name
    }

    fn allocate(&mut self, number: u32, size: u64, stream: u32) -> bool {
        let size = (self.round)(size);
        let key = (stream, size);
        let cached = self.free.get_mut(&key).filter(|count| **count > 0);
        let given = match cached {
            Some(count) => {
                *count -= 1;
                true
            }
            None => {
                self.driver.obtain(size) || {
                    // As these pools do: everything that is free goes back, and once more.
                    for ((_, size), count) in std::mem::take(&mut self.free) {
                        (0..count).for_each(|_| self.driver.give_back(size));
                    }
                    self.driver.obtain(size)
                }
            }
        };
        if given {
            self.live.insert(number, key);
        }
        given
    }

    fn free(&mut self, number: u32) {
        if let Some(key) = self.live.remove(&number) {
            *self.free.entry(key).or_default() += 1;
        }
    }

    fn driver(&self) -> &Driver {
        &self.driver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver() -> Driver {
        Driver::new(1 << 20)
    }

    #[test]
    fn without_a_cache_the_driver_sees_everything() {
        let mut policy = NoCache::new(driver());
        assert!(policy.allocate(0, 1000, 0) && policy.driver().held == 1024);
        policy.free(0);
        policy.free(0);
        assert_eq!((policy.driver().held, policy.driver().calls()), (0, 2));
    }

    #[test]
    fn caches_keep_sizes_and_streams_apart() {
        let mut exact = BySize::exact(driver());
        let mut power = BySize::powers_of_two(driver());
        for policy in [&mut exact as &mut dyn Policy, &mut power] {
            policy.allocate(0, 3000, 0);
            policy.free(0);
            let held = policy.driver().held;
            policy.allocate(1, 3000, 1);
            assert_eq!(policy.driver().held, 2 * held, "another stream's is not taken");
            policy.allocate(2, 2990, 0);
            assert_eq!(policy.driver().held, 2 * held, "its own is");
        }
        assert_eq!((exact.driver().held, power.driver().held), (2 * 3072, 2 * 4096));
    }

    #[test]
    fn a_full_driver_gets_the_cache_back_first() {
        let mut policy = BySize::exact(Driver::new(10_000));
        assert!(policy.allocate(0, 8_000, 0));
        assert!(!policy.allocate(1, 4_000, 0), "it is in use");
        policy.free(0);
        assert!(policy.allocate(2, 4_000, 0));
        assert_eq!(policy.driver().held, 4_096);
    }
}
