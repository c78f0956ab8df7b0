"""The KV of sequences in blocks of one pool, and passes over it that a CUDA graph can capture.

The layout for cards: `PagedLayout` runs plans (`paceline.engine.pass_plan`) as `ContiguousLayout`
does, with the same bits on a CPU, where the tests run it. Who uses what: a plan becomes waves of
tiles (`waves`), those become one tensor of numbers of a fixed size (`numbers`), and a captured pass
(`graphs`) reads it, writes keys and values, and attends (`attention`) by a kernel (`kernels`,
`varlen`) to the blocks of the pool (`storage`, `pool`).

Nothing of it has run on a card yet: what needs one has a double on the CPU behind the same
interface.
"""
