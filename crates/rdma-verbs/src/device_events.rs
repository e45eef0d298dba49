//! Events of a whole device.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::{EventTarget, Signal};

/// Number of events that are kept for a program that does not poll. Further ones replace the oldest.
pub(crate) const KEPT: usize = 64;

/// What happens to a device. Connections that it concerns report it themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The port with this number can be used again.
    PortActive(u8),
    /// The port with this number is down.
    PortDown(u8),
    /// The device has failed or was removed.
    Gone,
    /// Another event, by rdma-core's number (`ibv_event_type`): of addresses, or of the subnet.
    Other(i32),
}

/// The events of a device, from the call of [`Device::events`](crate::Device::events) on.
pub struct DeviceEvents {
    /// `None`: there never are any.
    queue: Option<Arc<Queue>>,
    /// Has the device look for events.
    look: Option<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Debug)]
struct Queue {
    events: Mutex<VecDeque<DeviceEvent>>,
    /// On while there are events.
    signal: Signal,
}

impl DeviceEvents {
    /// Those of a device that has none.
    #[must_use]
    pub const fn none() -> Self {
        Self { queue: None, look: None }
    }

    /// The same events, for which the device is asked by `look`.
    #[must_use]
    pub fn found_by(self, look: impl Fn() + Send + Sync + 'static) -> Self {
        Self { look: Some(Box::new(look)), ..self }
    }

    /// The next event. After `None`, the caller asks again when the event target reports its token.
    pub fn poll(&mut self) -> Option<DeviceEvent> {
        let queue = self.queue.as_ref()?;
        if let Some(look) = &self.look {
            look();
        }
        let mut events = queue.events.lock();
        let event = events.pop_front();
        queue.signal.set(!events.is_empty());
        event
    }
}

impl fmt::Debug for DeviceEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceEvents").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// Passes a device's events to all who asked for them.
#[derive(Debug, Default)]
pub struct DeviceEventSender(Mutex<Vec<Weak<Queue>>>);

impl DeviceEventSender {
    /// The events that are sent from now on.
    #[must_use]
    pub fn subscribe(&self, target: &EventTarget) -> DeviceEvents {
        let signal = target.wait.signal(target.token);
        let queue = Arc::new(Queue { events: Mutex::default(), signal });
        let mut queues = self.0.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        DeviceEvents { queue: Some(queue), look: None }
    }

    /// Sends an event.
    pub fn send(&self, event: DeviceEvent) {
        for queue in self.0.lock().iter().filter_map(Weak::upgrade) {
            let mut events = queue.events.lock();
            if events.len() == KEPT {
                events.pop_front();
            }
            events.push_back(event);
            queue.signal.set(true);
        }
    }
}
