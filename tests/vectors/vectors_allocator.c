/* A deliberately plain page allocator with reference counts, which passes the vectors of tables.
 *
 *     kvspec vectors build/vectors
 *     cc -std=c11 -o allocator tests/vectors/vectors_allocator.c && ./allocator build/vectors/table-*.txt
 *
 * If it is built with -DBUG=n, it has a known bug. Each action returns the reason of its refusal, or NULL. */
#include "vectors_reader.h"

#ifndef BUG
#define BUG 0
#endif

static int request_of[MOST], choice_of[MOST]; /* of the prompt of a slot; request 0: no prompt */

static void restart(void) { memset(request_of, 0, sizeof request_of); }

static int free_pages(void) {
    int free = 0;
    for (int p = 0; p < pages; p++) free += table.counts[p] == 0;
    return free;
}
static int take_page(void) {
    int page = BUG == 5 ? pages - 1 : 0;
    while (table.counts[page]) page += BUG == 5 ? -1 : 1;
    table.counts[page] = 1;
    return page;
}
static int lowest_slot(void) {
    int slot = 0;
    while (slot < slots && table.used[slot]) slot++;
    return slot;
}
static bool in_range(int slot) { return 0 <= slot && slot < slots; }
static bool taken(int request, int choice) {
    for (int s = 0; s < slots; s++)
        if (table.used[s] && request_of[s] == request && choice_of[s] == choice) return true;
    return false;
}

static const char *reserve(int slot) {
    if (slot < 0 && (slot = lowest_slot()) == slots) return "NO_FREE_SLOT";
    if (!in_range(slot)) return "SLOT_RANGE";
    if (table.used[slot]) return "SLOT_USED";
    table.used[slot] = 1;
    answer(slot);
    return NULL;
}
static const char *assign(int slot, int *prompt, int len, int max_new, bool stops_fit, int request,
                          int choice) {
    if (!stops_fit) return "STOPS";
    if (!in_range(slot)) return "SLOT_RANGE";
    if (!table.used[slot]) return "SLOT_UNUSED";
    if (request_of[slot]) return "SLOT_ASSIGNED";
    if (len + max_new > max_len) return "TOO_LONG";
    if (taken(request, choice)) return "CHOICE_TAKEN";
    memcpy(table.tokens[slot], prompt, sizeof(int) * len);
    table.known[slot] = len, request_of[slot] = request, choice_of[slot] = choice;
    return NULL;
}
static const char *batch(bool write, int n, int (*entries)[2]) {
    static const char *const whys[] = {"SLOT_RANGE", "SLOT_UNUSED", "SLOT_EMPTY"};
    int count[MOST] = {0}, wanted = 0, total = 0;
    if (n > widest) return "BATCH_WIDTH";
    for (int why = 0; why < 3; why++)
        for (int i = 0, s; i < n; i++)
            if ((s = entries[i][0]) >= 0 && (why == 0   ? s >= slots
                                             : why == 1 ? !table.used[s]
                                                        : write && !request_of[s]))
                return whys[why];
    for (int i = 0; i < n; i++)
        if (entries[i][0] >= 0) count[entries[i][0]]++, total++;
    for (int i = 0; i < n; i++) { /* each of the slot's next positions, and none twice */
        int slot = entries[i][0], start = slot < 0 ? 0 : (write ? table.written : table.allocated)[slot];
        if (slot < 0) continue;
        if (entries[i][1] < start || entries[i][1] >= start + count[slot]) return "BATCH_POSITIONS";
        for (int j = 0; j < i; j++)
            if (!memcmp(entries[i], entries[j], sizeof entries[i])) return "BATCH_POSITIONS";
    }
    for (int s = 0; s < slots; s++) {
        int end = (write ? table.written : table.allocated)[s] + count[s];
        if (count[s] && write && end > table.allocated[s]) return "BATCH_POSITIONS";
        if (count[s] && write && end > table.known[s]) return "BATCH_UNKNOWN";
        if (count[s] && end > max_len) return "TOO_LONG";
        wanted += (end + page_size - 1) / page_size - table.row_len[s];
    }
    if (!write && wanted > free_pages()) return "OUT_OF_PAGES";
    if (!write) answer(total);
    for (int s = 0; s < slots; s++)
        for (int i = 0; i < count[s]; i++) {
            int at = (write ? table.written : table.allocated)[s]++;
            if (write) continue;
            if (at % page_size == 0) table.rows[s][table.row_len[s]++] = take_page();
            answer(table.rows[s][at / page_size] * page_size + at % page_size);
        }
    return NULL;
}
static const char *clone(int parent, int child, int choice) {
    if (!in_range(parent) || (child >= 0 && !in_range(child))) return "SLOT_RANGE";
    if (!table.used[parent]) return "SLOT_UNUSED";
    if (child < 0 && (child = lowest_slot()) == slots) return "NO_FREE_SLOT";
    if (table.used[child]) return "SLOT_USED";
    int full = table.written[parent] / page_size, partial = table.written[parent] % page_size != 0;
    if (table.allocated[parent] != table.written[parent]) return "UNWRITTEN";
    if (!request_of[parent]) return "SLOT_EMPTY";
    if (BUG != 8 && taken(request_of[parent], choice)) return "CHOICE_TAKEN";
    if (BUG == 4) table.used[child] = 1; /* before the last check */
    if (partial && BUG != 3 && !free_pages()) return "OUT_OF_PAGES";
    table.used[child] = 1, request_of[child] = request_of[parent], choice_of[child] = choice;
    table.allocated[child] = table.allocated[parent], table.written[child] = table.written[parent];
    table.row_len[child] = table.row_len[parent], table.known[child] = table.known[parent];
    memcpy(table.tokens[child], table.tokens[parent], sizeof table.tokens[child]);
    for (int i = 0; i < full + partial; i++) {
        bool shared = i < full || BUG == 3;
        table.rows[child][i] = shared ? table.rows[parent][i] : take_page();
        if (shared && BUG != 7) table.counts[table.rows[child][i]]++;
    }
    answer(child);
    return NULL;
}
static const char *release(int slot) {
    if (!in_range(slot)) return "SLOT_RANGE";
    if (!table.used[slot]) return "SLOT_UNUSED";
    for (int i = 0; i < table.row_len[slot] - (BUG == 1); i++) {
        int *count = &table.counts[table.rows[slot][i]];
        *count = BUG == 2 && *count > 1 ? *count - 2 : *count - 1;
    }
    table.used[slot] = table.row_len[slot] = table.known[slot] = request_of[slot] = 0;
    if (BUG != 6) table.allocated[slot] = table.written[slot] = 0;
    return NULL;
}

static const char *act(const char *name) {
    if (!strcmp(name, "Reserve")) return reserve(number());
    if (!strcmp(name, "Free")) return release(number());
    if (!strcmp(name, "Clone")) {
        int parent = number(), child = number();
        return clone(parent, child, number());
    }
    if (!strcmp(name, "Assign")) {
        int slot = number(), prompt[MOST], ignored[MOST], len = list(prompt), max_new = number();
        int stops = number();
        bool fit = stops <= most_stops;
        for (int i = 0; i < stops; i++) fit &= list(ignored) <= longest_stop;
        number(), number(); /* temperature and seed: nothing is drawn here */
        int request = number();
        return assign(slot, prompt, len, max_new, fit, request, number());
    }
    if (!strcmp(name, "Allocate") || !strcmp(name, "Write")) {
        int n = number(), entries[MOST][2];
        for (int i = 0; i < n; i++)
            if ((entries[i][0] = number()) >= 0) entries[i][0] = number(), entries[i][1] = number();
        return batch(*name == 'W', n, entries);
    }
    if (!strcmp(name, "TakeOutputs")) answer(0);
    if (!strcmp(name, "Reset"))
        for (int s = 0; s < slots; s++) release(s);
    return NULL; /* FreeFinished, TakeOutputs: nothing finishes here */
}
