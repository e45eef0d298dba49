//! Events of a shard's device.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::core::{Core, Source};
use super::waiters::Waiters;
use super::{Result, Shard, TrustedDevice};
use crate::device_events::KEPT;
use crate::{AnyDevice, DeviceEvent, EventTarget, Token};

/// What a shard knows of one [`DeviceEvents`].
pub(super) struct Watching {
    events: crate::DeviceEvents,
    token: Token,
    /// What was not taken. If it stayed in the device, the shard's descriptor would stay readable.
    queue: VecDeque<DeviceEvent>,
    watchers: Waiters,
}

/// The events of a shard's device since this was made: a port that is down, a device that is gone. A
/// connection that they concern reports its end itself. The last events are kept until they are taken.
#[derive(Debug)]
pub struct DeviceEvents<D: TrustedDevice = AnyDevice> {
    shard: Shard<D>,
    index: usize,
}

impl<D: TrustedDevice> DeviceEvents<D> {
    pub(super) fn new(shard: &Shard<D>) -> Result<Self> {
        let index = shard.inner.with(Core::watch_device)?;
        Ok(Self { shard: shard.clone(), index })
    }

    /// The next event. Some devices never have any, such as the embedded one.
    pub fn next(&self) -> NextDeviceEvent<'_, D> {
        NextDeviceEvent { events: self, ticket: None }
    }
}

impl<D: TrustedDevice> Drop for DeviceEvents<D> {
    fn drop(&mut self) {
        self.shard.inner.with(|core| core.stop_watching(self.index));
    }
}

/// See [`DeviceEvents::next`].
#[must_use = "it does nothing before it is polled"]
pub struct NextDeviceEvent<'e, D: TrustedDevice = AnyDevice> {
    events: &'e DeviceEvents<D>,
    ticket: Option<u64>,
}

impl<D: TrustedDevice> NextDeviceEvent<'_, D> {
    /// Waits for it, and drives the shard meanwhile.
    pub fn wait(self) -> DeviceEvent {
        self.events.shard.block_on(self)
    }
}

impl<D: TrustedDevice> Future for NextDeviceEvent<'_, D> {
    type Output = DeviceEvent;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<DeviceEvent> {
        let Self { events, ticket } = &mut *self;
        events.shard.inner.with(|core| {
            core.poll_device(events.index);
            // It exists as long as its handle.
            let watching = &mut core.watching[events.index];
            match watching.queue.pop_front() {
                Some(event) => Poll::Ready(event),
                None => {
                    watching.watchers.register(ticket, context.waker(), &mut core.woken);
                    Poll::Pending
                }
            }
        })
    }
}

impl<D: TrustedDevice> Drop for NextDeviceEvent<'_, D> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.events.shard.inner.with(|core| {
                core.watching[self.events.index].watchers.remove(self.ticket, &mut core.woken);
            });
        }
    }
}

impl<D: TrustedDevice> Core<D> {
    fn watch_device(&mut self) -> crate::Result<usize> {
        let target = EventTarget::new(&self.events);
        let token = target.token;
        let events = self.device.events(target)?;
        let (queue, watchers) = (VecDeque::new(), Waiters::default());
        let index = self.watching.insert(Watching { events, token, queue, watchers });
        self.sources.insert(token, Source::Device(index));
        Ok(index)
    }

    fn stop_watching(&mut self, index: usize) {
        if let Some(mut watching) = self.watching.try_remove(index) {
            self.sources.remove(&watching.token);
            watching.watchers.wake(&mut self.woken);
        }
    }

    /// Takes over the events of the device.
    pub(super) fn poll_device(&mut self, index: usize) {
        let Some(watching) = self.watching.get_mut(index) else { return };
        while let Some(event) = watching.events.poll() {
            if watching.queue.len() == KEPT {
                watching.queue.pop_front();
            }
            watching.queue.push_back(event);
            watching.watchers.wake(&mut self.woken);
        }
    }
}
