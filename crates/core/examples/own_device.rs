//! The pool over an engine's own memory: `cargo run -p aquifer-core --example own_device`.
//!
//! The engine gives blocks and says how far its queues have come; it gets reuse, limits and the
//! account. Here its memory is a counter; a real one holds driver objects by `BlockId`.

use std::cell::Cell;

use aquifer_core::{
    Block, BlockId, Caps, DriverError, Memory, Pool, QueueId, Request, Settings, Stamp, Storage,
    Ticket,
};

#[derive(Default)]
struct Engine {
    next: Cell<u64>,
    done: Cell<Ticket>,
}

impl Memory for Engine {
    fn obtain(&self, size: u64, mode: Storage) -> Result<Block, DriverError> {
        self.next.set(self.next.get() + 1);
        println!("driver: {size} bytes, {mode}");
        Ok(Block { id: BlockId(self.next.get()), size, address: 0 })
    }

    fn give_back(&self, block: Block) {
        println!("driver: block {} comes back", block.id.0);
    }

    fn reached(&self, _queue: QueueId) -> Ticket {
        self.done.get()
    }

    // Without virtual memory in its `Caps` a device is never asked for these.
    fn reserve(&self, _size: u64, _mode: Storage) -> Result<Block, DriverError> {
        Err(DriverError { call: "reserve", code: 0 })
    }
    fn commit(&self, _span: BlockId, _offset: u64, _len: u64) -> Result<(), DriverError> {
        Err(DriverError { call: "commit", code: 0 })
    }
    fn release(&self, _span: Block) {}
    fn decommit(&self, _span: BlockId, _offset: u64, _len: u64) {}
    fn wire(&self, _block: BlockId, _offset: u64, _len: u64) -> Result<(), DriverError> {
        Err(DriverError { call: "wire", code: 0 })
    }
    fn unwire(&self, _block: BlockId, _offset: u64, _len: u64) {}
}

fn main() -> Result<(), aquifer_core::Refusal> {
    let engine = Engine::default();
    let caps = Caps::model_with_blocks(1 << 30);
    let mut pool = Pool::new(&caps, Settings::for_working_set(8 << 30, 16 << 30));
    let queue = QueueId(0);

    let weights = pool.allocate(&engine, Request::new(40 << 20, Storage::Private))?;
    let scratch = pool.allocate(&engine, Request::new(6 << 20, Storage::Private).on(queue))?;
    println!("scratch: block {} at {}", scratch.block().0, scratch.offset());
    // Work with ticket 1 uses it: free at once for the same queue, for others when it is done.
    pool.free(&engine, scratch, Stamp { queue, ticket: 1, epoch: 0 }.into());
    let again = pool.allocate(&engine, Request::new(6 << 20, Storage::Private).on(queue))?;
    println!("the same queue has it again: {:?}", again.inherited().map(|stamp| stamp.ticket));
    engine.done.set(1);
    pool.free(&engine, again, Default::default());
    println!("{}", pool.stats());
    pool.free(&engine, weights, Default::default());
    assert_eq!(pool.close(&engine), 0);
    Ok(())
}
