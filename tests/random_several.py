"""Random fusions of values with several ragged axes, with a loop over the components of each in numpy beside them."""

import itertools

import numpy as np

import jax_fuser as jf

UNARY = {"neg": np.negative, "tanh": np.tanh, "abs": np.abs}
BINARY = {"add": np.add, "sub": np.subtract, "max": np.maximum}
FOLDS = {"sum": (np.sum, 0.0), "max": (np.max, -np.inf), "min": (np.min, np.inf)}


class Axis:
    """One ragged axis: rows of an array cut by starts and sizes, of `owner` (an axis of components)."""

    def __init__(self, program, name, groups=None):
        rng = program.rng
        self.name, self.rows = name, int(rng.integers(1, 9))
        self.groups = int(rng.integers(1, 4)) if groups is None else groups
        sizes = rng.multinomial(int(rng.integers(0, self.rows + 1)), rng.dirichlet(np.full(self.groups, 0.6)))
        self.sizes = sizes.astype(np.int32)
        self.starts = (np.cumsum(self.sizes) - self.sizes).astype(np.int32)
        self.s = program.input("starts", self.starts, "s32")
        self.e = program.input("sizes", self.sizes, "s32")

    def part(self, g):
        return slice(self.starts[g], self.starts[g] + self.sizes[g])


class Several:
    """Axes of a value in order, each ("rows", axis), ("component", axis) or ("dense", extent), and its elements.

    `parts` maps the index of every component to the array of rows and dense axes, in the order of the axes.
    """

    def __init__(self, value, axes, parts):
        self.value, self.axes, self.parts = value, axes, parts

    def position(self, kind, axis):
        return next(i for i, (k, a) in enumerate(self.axes) if k == kind and a is axis)

    @property
    def ragged(self):
        return [a for k, a in self.axes if k == "rows"]

    def among_rows(self, position):
        """Return which axis of a part is the value's axis `position`."""
        return sum(k != "component" for k, _ in self.axes[:position])


class Program:
    """`fusion`, its `inputs`, and `want`, one array for each output."""

    def __init__(self, seed):
        self.rng = rng = np.random.default_rng(seed)
        self.b, self.given, self.want, self.left = jf.ir.Builder("random"), {}, [], []
        count = int(rng.choice([2, 2, 2, 3]))
        self.shared = bool(rng.random() < 0.4)
        first = Axis(self, "a")
        others = [Axis(self, "bc"[i], first.groups if self.shared else None) for i in range(count - 1)]
        self.axes = [first, *others]
        self.dense = [int(n) for n in rng.choice([1, 2, 3, 5], int(rng.integers(0, 3)))]
        self.owners = [first] * count if self.shared else self.axes
        self.values = [self.pairs() if self.shared else self.partitioned() for _ in range(int(rng.integers(1, 3)))]
        for _ in range(int(rng.integers(1, 5))):
            self.values.append(self.step(self.values[-1 - int(rng.integers(min(2, len(self.values))))]))
        for value in self.values[-int(rng.integers(1, 3)) :]:
            self.leave(value)
        self.fusion = self.b.finish()

    def input(self, name, array, dtype="f32"):
        value = self.b.input(name, dtype, list(array.shape))
        self.given[value] = array
        return value

    def array(self, shape):
        return self.rng.uniform(-1, 1, shape).astype(np.float32)

    def components(self, axes):
        """Return every index of the components of a value with these axes."""
        owners = [a for k, a in axes if k == "component"]
        return itertools.product(*(range(a.groups) for a in owners))

    def partitioned(self):
        """Return an array cut along several of its axes, in any order of the cuts."""
        kinds = [("rows", a) for a in self.axes] + [("dense", n) for n in self.dense]
        kinds = [kinds[i] for i in self.rng.permutation(len(kinds))]
        x = self.array([a.rows if k == "rows" else a for k, a in kinds])
        for i, (k, a) in enumerate(kinds):
            if k == "rows":
                x[(slice(None),) * i + (slice(a.sizes.sum(), None),)] = np.nan
        value, axes = self.input("x", x), list(kinds)
        if self.rng.random() < 0.5:
            value, x = self.b.pointwise("tanh", [value]), np.tanh(x)
        for a in [self.axes[i] for i in self.rng.permutation(len(self.axes))]:
            at = axes.index(("rows", a))
            value = self.b.partition(value, a.s, a.e, at, a.rows)
            axes.insert(at, ("component", a))
        parts = {}
        for index in self.components(axes):
            of = dict(zip([a.name for k, a in axes if k == "component"], index))
            parts[index] = x[tuple(a.part(of[a.name]) if k == "rows" else slice(None) for k, a in kinds)]
        return Several(value, axes, parts)

    def pairs(self):
        """Return what arrays of the rows of each axis give for all their combinations in one component."""
        groups, result, b = self.axes[0].groups, None, self.b
        axes = [("component", self.axes[0]), *(("rows", a) for a in self.axes), *(("dense", n) for n in self.dense)]
        shape = [groups, *(a.rows for a in self.axes), *self.dense]
        wants = {(g,): 0.0 for g in range(groups)}
        for i, a in enumerate(self.axes):
            x = self.array([a.rows, *self.dense])
            x[a.sizes.sum() :] = np.nan
            value = b.partition(self.input("x", x), a.s, a.e, 0, a.rows)
            own = [0, 1 + i, *range(1 + len(self.axes), len(shape))]
            flat = [n if d in own else 1 for d, n in enumerate(shape)]
            value = b.broadcast(value, flat, own)
            for k, other in enumerate(self.axes):
                if k != i:
                    value = b.stretch(value, other.e, 1 + k, other.rows, [0])
            result = value if result is None else b.pointwise("add", [result, value])
            for (g,), want in wants.items():
                lead = [1] * len(self.axes)
                lead[i] = -1
                wants[g,] = want + x[a.part(g)].reshape(*lead, *self.dense)
        for g in range(groups):
            wants[g,] = np.broadcast_to(wants[g,], [*(int(a.sizes[g]) for a in self.axes), *self.dense])
        return Several(result, axes, wants)

    def step(self, x):
        rng, b = self.rng, self.b
        kind = str(rng.choice(["unary", "binary", "fold", "centre", "turn", "dense", "group", "view"]))
        rows = [i for i, (k, _) in enumerate(x.axes) if k != "component"]
        if kind == "binary":
            same = [y for y in self.values if y.axes == x.axes]
            y, op = same[int(rng.integers(len(same)))], str(rng.choice(list(BINARY)))
            parts = {i: BINARY[op](p, y.parts[i]) for i, p in x.parts.items()}
            return Several(b.pointwise(op, [x.value, y.value]), x.axes, parts)
        if kind in ("fold", "centre") and len(x.ragged) > 1:
            at = int(rng.choice(rows))
            op = str(rng.choice(list(FOLDS)))
            along = x.among_rows(at)
            folded = b.reduce(f"reduce_{op}", x.value, [at])
            parts = {i: FOLDS[op][0](p, axis=along, initial=FOLDS[op][1]) for i, p in x.parts.items()}
            if kind == "fold":
                return Several(folded, [a for i, a in enumerate(x.axes) if i != at], parts)
            kept = [i for i in range(len(x.axes)) if i != at]
            if x.axes[at][0] == "rows":
                back = b.broadcast_like(folded, x.value, kept)
            else:
                back = b.broadcast(folded, self.shape(x.axes), kept)
            wide = {i: np.minimum(np.maximum(np.expand_dims(p, along), -9), 9) for i, p in parts.items()}
            bounds = [b.broadcast_like(b.constant("f32", n), x.value, []) for n in (-9.0, 9.0)]
            back = b.pointwise("clamp", [bounds[0], back, bounds[1]])
            return Several(b.pointwise("sub", [x.value, back]), x.axes, {i: p - wide[i] for i, p in x.parts.items()})
        if kind == "turn":
            order = [int(i) for i in rng.permutation(len(x.axes))]
            axes = [x.axes[i] for i in order]
            before = [a for k, a in x.axes if k == "component"]
            after = [a for k, a in axes if k == "component"]
            moved = [rows.index(i) for i in order if i in rows]
            parts = {tuple(index[before.index(a)] for a in after): p.transpose(moved) for index, p in x.parts.items()}
            return Several(b.transpose(x.value, order), axes, parts)
        if kind == "dense":
            n = int(rng.choice([1, 2, 3]))
            to = [*self.shape(x.axes), n]
            wide = b.broadcast(x.value, to, list(range(len(x.axes))))
            parts = {i: np.broadcast_to(p[..., None], (*p.shape, n)) for i, p in x.parts.items()}
            return Several(wide, [*x.axes, ("dense", n)], parts)
        if kind == "view":
            return self.view(x)
        if kind == "group":
            owners = [(i, a) for i, (k, a) in enumerate(x.axes) if k == "component"]
            w = self.array([a.groups for _, a in owners])
            like = b.broadcast_like(self.input("w", w), x.value, [i for i, _ in owners])
            parts = {i: p * w[i] for i, p in x.parts.items()}
            return Several(b.pointwise("mul", [x.value, like]), x.axes, parts)
        op = str(rng.choice(list(UNARY)))
        return Several(b.pointwise(op, [x.value]), x.axes, {i: UNARY[op](p) for i, p in x.parts.items()})

    def view(self, x):
        """Return a reshape, slice or pad of a dense axis; what takes no such view as it is."""
        rng, b, whole = self.rng, self.b, self.shape(x.axes)
        dense = [i for i, (k, _) in enumerate(x.axes) if k == "dense"]
        if not dense:
            return x
        at = int(rng.choice(dense))
        n, along, joined = x.axes[at][1], x.among_rows(at), at + 1 in dense
        # A shape does not say which of two axes of extent 1 is a component.
        clear = all(m > 1 for (k, _), m in zip(x.axes, whole) if k != "dense")
        how = str(rng.choice(["slice", "pad", *(["split", "merge"] if clear else [])]))
        rank = len(x.axes)
        try:
            if how == "slice":
                first, step = int(rng.integers(n)), int(rng.choice([1, 2]))
                kept = len(range(first, n, step))
                behind = rank - at - 1
                starts, steps = [0] * at + [first] + [0] * behind, [1] * at + [step] + [1] * behind
                value = b.slice(x.value, starts, steps, [*whole[:at], kept, *whole[at + 1 :]])
                parts = {i: np.take(p, range(first, n, step), along) for i, p in x.parts.items()}
                return Several(value, [*x.axes[:at], ("dense", kept), *x.axes[at + 1 :]], parts)
            if how == "pad":
                low = [int(i == at) for i in range(rank)]
                value = b.pad(x.value, low, [0] * rank, b.constant("f32", 0.25))
                widths = {i: [(int(a == along), 0) for a in range(p.ndim)] for i, p in x.parts.items()}
                parts = {i: np.pad(p, widths[i], constant_values=0.25) for i, p in x.parts.items()}
                return Several(value, [*x.axes[:at], ("dense", n + 1), *x.axes[at + 1 :]], parts)
            if how == "merge" and joined:
                axes = [*x.axes[:at], ("dense", n * x.axes[at + 1][1]), *x.axes[at + 2 :]]
                shapes = {i: (*p.shape[:along], axes[at][1], *p.shape[along + 2 :]) for i, p in x.parts.items()}
            else:
                least = min(d for d in range(1, n + 1) if n % d == 0 and (d > 1 or n == 1))
                axes = [*x.axes[:at], ("dense", least), ("dense", n // least), *x.axes[at + 1 :]]
                shapes = {i: (*p.shape[:along], least, n // least, *p.shape[along + 1 :]) for i, p in x.parts.items()}
            value = b.reshape(x.value, self.shape(axes))
            return Several(value, axes, {i: p.reshape(shapes[i]) for i, p in x.parts.items()})
        except jf.UserError as error:
            assert "others must be neighbours where arrays are partitioned" in str(error)
            return x

    def shape(self, axes):
        return [a.rows if k == "rows" else a.groups if k == "component" else a for k, a in axes]

    def leave(self, x):
        b, rng = self.b, self.rng
        owners = [a for k, a in x.axes if k == "component"]
        if rng.random() < 0.5:
            rows = [a.rows + int(rng.integers(0, 3)) for a in x.ragged]
            kept = [(k, a) for k, a in x.axes if k != "component"]
            if len(owners) > len(x.ragged) and not self.shared:
                return self.fold(x, owners)
            want = np.zeros([rows[x.ragged.index(a)] if k == "rows" else a for k, a in kept])
            for index, part in x.parts.items():
                g = {a.name: n for a, n in zip(owners, index)}
                place = [
                    a.part(g[(self.axes[0] if self.shared else a).name]) if k == "rows" else slice(None)
                    for k, a in kept
                ]
                want[tuple(place)] = part
            starts = [a.s for a in x.ragged]
            out = b.combine(x.value, starts, rows) if len(rows) > 1 else b.combine(x.value, starts[0], rows[0])
            return self.output(out, want)
        return self.fold(x, owners)

    def some(self, x):
        """Return a slice of rows and components, and how many components of each owner it has."""
        rng, starts, counts, groups, which = self.rng, [], [], {}, []
        for (k, a), n in zip(x.axes, self.shape(x.axes)):
            first = int(rng.integers(n)) if k != "dense" and rng.random() < 0.6 else 0
            starts.append(first)
            counts.append(int(rng.integers(1, n - first + 1)) if first else n)
            if k == "component":
                groups[a.name] = counts[-1]
                which.append(range(first, first + counts[-1]))
        at = tuple(slice(s, s + n) for (k, _), s, n in zip(x.axes, starts, counts) if k != "component")
        parts = {tuple(c - of[0] for c, of in zip(i, which)): x.parts[i][at] for i in itertools.product(*which)}
        return Several(self.b.slice(x.value, starts, [1] * len(counts), counts), x.axes, parts), groups

    def fold(self, x, owners):
        groups = {a.name: a.groups for a in owners}
        if self.rng.random() < 0.5:
            x, groups = self.some(x)
        op = str(self.rng.choice(list(FOLDS)))
        fold, nothing = FOLDS[op]
        dims = [i for i, (k, _) in enumerate(x.axes) if k == "rows" or (k == "dense" and self.rng.random() < 0.5)]
        along = tuple(x.among_rows(i) for i in dims)
        parts = {i: fold(p, axis=along, initial=nothing) for i, p in x.parts.items()}
        rest = [(k, a) for i, (k, a) in enumerate(x.axes) if i not in dims]
        want = np.zeros([groups[a.name] if k == "component" else a for k, a in rest])
        for index, part in parts.items():
            own = iter(index)
            want[tuple(next(own) if k == "component" else slice(None) for k, _ in rest)] = part
        self.output(self.b.reduce(f"reduce_{op}", x.value, dims), want)

    def output(self, value, want):
        if value not in self.left:  # a value is one output
            self.b.output(value)
            self.left.append(value)
            self.want.append(want)

    def operands(self):
        """Return the inputs in the fusion's order."""
        return list(self.given.values())
