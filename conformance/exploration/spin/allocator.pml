/*
 * The allocator layer of the specification, for SPIN: which slots are used, how long each sequence
 * is and which pages its row names. Contents of pages are left out. conformance/exploration/cross_check.py runs
 * this and compares the number of reachable states with that of our own exploration.
 *
 * One action, one transition. Each action with its arguments is a process of its own, which loops
 * on one d_step and so never leaves the place where it began: the processes add the same bytes to
 * every state. A refused action is a d_step that changes nothing. An action whose slots are not as
 * it needs them is not enabled.
 *
 * One state of the layer, one stored state. All variables begin at 0 and that is already the
 * initial state, so that no step prepares it; what an action computes on the way is hidden from
 * the state; entries of a row that are not in use are 0; the counts follow from the rows.
 */

#ifndef PAGES
#define PAGES 4
#endif
#ifndef SLOTS
#define SLOTS 3
#endif
#ifndef PAGE_SIZE
#define PAGE_SIZE 2
#endif
#ifndef PAGES_PER_SEQ
#define PAGES_PER_SEQ 2
#endif

/* A planted bug, so that the check itself can be checked; 0 is none.
 * 1: a clone does not raise the counts of what it shares. 2: a clone shares the partial last page.
 * 3: extend refuses to take the last free page, which breaks no invariant and only the number of
 * states can tell.
 */
#ifndef BUG
#define BUG 0
#endif

#define MAX_LEN (PAGE_SIZE * PAGES_PER_SEQ)
#define EXTENDS (SLOTS * PAGE_SIZE)
#define CLONES (SLOTS * SLOTS)

#if PAGES > 254 || SLOTS * PAGES_PER_SEQ > 255 || PAGE_SIZE * PAGES_PER_SEQ > 255
#error "too large: lengths, pages and counts are bytes"
#endif
#if SLOTS * (1 + PAGE_SIZE + SLOTS) > 255
#error "too large: SPIN has at most 255 processes"
#endif

#define PAGES_FOR(tokens) (((tokens) + PAGE_SIZE - 1) / PAGE_SIZE)
#define ROW(slot, index) row[(slot) * PAGES_PER_SEQ + (index)]
#define NONE 0 /* so a row holds page + 1 */

bool used[SLOTS];
byte length[SLOTS];
byte row[SLOTS * PAGES_PER_SEQ];
byte count[PAGES]; /* kept as an allocator keeps it; check() compares it with the rows */

/* Set before they are read in the same d_step. */
hidden byte slot, more, parent, child, shared, page, i, j;
hidden byte tally[PAGES];

/* page: the lowest free one; PAGES if there is none. */
inline find_free()
{
	page = 0;
	do
	:: page < PAGES && count[page] != 0 -> page++
	:: else -> break
	od
}

inline tally_rows()
{
	page = 0;
	do
	:: page < PAGES -> tally[page] = 0; page++
	:: else -> break
	od;
	i = 0;
	do
	:: i < SLOTS * PAGES_PER_SEQ ->
		if
		:: row[i] != NONE -> tally[row[i] - 1]++
		:: else -> skip
		fi;
		i++
	:: else -> break
	od
}

inline check_entry()
{
	if
	:: i < PAGES_FOR(length[slot]) ->
		assert(ROW(slot, i) != NONE);
		/* only full pages are shared */
		assert(count[ROW(slot, i) - 1] == 1 || (i + 1) * PAGE_SIZE <= length[slot]);
		/* no row names a page twice */
		j = 0;
		do
		:: j < i -> assert(ROW(slot, j) != ROW(slot, i)); j++
		:: else -> break
		od
	:: else -> assert(ROW(slot, i) == NONE)
	fi
}

/* The invariants, after every action. */
inline check()
{
	tally_rows();
	/* a count is the number of row entries that name the page */
	page = 0;
	do
	:: page < PAGES -> assert(count[page] == tally[page]); page++
	:: else -> break
	od;
	slot = 0;
	do
	:: slot < SLOTS ->
		assert(length[slot] <= MAX_LEN && (used[slot] || length[slot] == 0));
		i = 0;
		do
		:: i < PAGES_PER_SEQ -> check_entry(); i++
		:: else -> break
		od;
		slot++
	:: else -> break
	od;
	skip /* a d_step may not end in a break */
}

/* reserve(slot) and free(slot), processes 0 to SLOTS - 1. */
active [SLOTS] proctype begin_and_end()
{
	do
	:: d_step {
		!used[_pid] ->
		used[_pid] = true;
		check()
	}
	:: d_step {
		used[_pid] ->
		slot = _pid;
		i = 0;
		do
		:: i < PAGES_FOR(length[slot]) ->
			count[ROW(slot, i) - 1]--;
			ROW(slot, i) = NONE;
			i++
		:: else -> break
		od;
		length[slot] = 0;
		used[slot] = false;
		check()
	}
	od
}

/* extend(slot, more), the next EXTENDS processes. more is 1 to PAGE_SIZE: never two new pages. */
active [EXTENDS] proctype extend()
{
	do
	:: d_step {
		used[(_pid - SLOTS) / PAGE_SIZE] ->
		slot = (_pid - SLOTS) / PAGE_SIZE;
		more = (_pid - SLOTS) % PAGE_SIZE + 1;
		if
		:: length[slot] + more > MAX_LEN -> skip
		:: length[slot] + more <= MAX_LEN && PAGES_FOR(length[slot] + more) == PAGES_FOR(length[slot]) ->
			length[slot] = length[slot] + more
		:: else ->
			find_free();
#if BUG == 3
			if
			:: page == PAGES - 1 -> page = PAGES
			:: else -> skip
			fi;
#endif
			if
			:: page == PAGES -> skip
			:: else ->
				ROW(slot, PAGES_FOR(length[slot])) = page + 1;
				count[page]++;
				length[slot] = length[slot] + more
			fi
		fi;
		check()
	}
	od
}

/* clone(parent, child), the last CLONES processes; those of a slot to itself are never enabled. */
active [CLONES] proctype clone()
{
	do
	:: d_step {
		used[(_pid - SLOTS - EXTENDS) / SLOTS] && !used[(_pid - SLOTS - EXTENDS) % SLOTS] ->
		parent = (_pid - SLOTS - EXTENDS) / SLOTS;
		child = (_pid - SLOTS - EXTENDS) % SLOTS;
#if BUG == 2
		shared = PAGES_FOR(length[parent]);
#else
		shared = length[parent] / PAGE_SIZE;
#endif
		find_free();
		if
		:: shared < PAGES_FOR(length[parent]) && page == PAGES -> skip
		:: else ->
			if
			:: shared < PAGES_FOR(length[parent]) ->
				ROW(child, shared) = page + 1;
				count[page]++
			:: else -> skip
			fi;
			i = 0;
			do
			:: i < shared ->
				ROW(child, i) = ROW(parent, i);
#if BUG != 1
				count[ROW(parent, i) - 1]++;
#endif
				i++
			:: else -> break
			od;
			length[child] = length[parent];
			used[child] = true
		fi;
		check()
	}
	od
}
