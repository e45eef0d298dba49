//! Message endpoints (`FI_EP_MSG`): messages and remote memory access with completions, on queue pairs for
//! messages of the verbs core.
//!
//! All objects of a domain share one [`engine`]: its lock covers the device's completion queue and everything
//! that a call changes. Each reader of a completion queue or counter drives it.
//!
//! | file | part |
//! |---|---|
//! | `limits`, `info` | what a device's endpoints can do, and what discovery says of it |
//! | `engine` | the device's completion queue, and whose completion is whose |
//! | `engine/watching` | what makes wait objects readable |
//! | `inbox` | which receive a message with a tag goes to |
//! | `inbox/parts`, `inbox/driving` | what it does with the rest of its endpoint; how the engine drives it |
//! | `operation` | what a completion needs to know of its operation |
//! | `endpoint`, `connecting`, `posting`, `rma`, `tagged` | the endpoint: its life, its connection, its data calls |
//! | `statistics` | what an endpoint counts |
//! | `leader` | who drives the endpoints while threads sleep within calls |
//! | `waiter` | threads that wait for several entries or for a counter |
//! | `completion_queue`, `counter` | where completions are reported |
//! | `armed` | threads that have requested a wake-up |
//! | `descriptor` | when the descriptor of a completion queue is readable |
//! | `queues` | the completion queues of a domain, and which of them calls have changed |
//! | `region` | registered memory |
//! | `shared_receive` | receives that several endpoints share |

mod armed;
pub(super) mod completion_queue;
mod connecting;
pub(super) mod counter;
mod descriptor;
pub(super) mod endpoint;
pub(super) mod engine;
mod inbox;
pub(super) mod info;
mod leader;
pub(super) mod limits;
mod operation;
mod posting;
mod queues;
pub(super) mod region;
mod rma;
pub(super) mod rxm;
pub(super) mod shared_receive;
mod statistics;
mod tagged;
mod waiter;
