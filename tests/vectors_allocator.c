/* A deliberately plain page allocator with reference counts, and a reader of the vectors' words.
 *
 *     kvspec vectors build/vectors
 *     cc -std=c11 -o allocator tests/vectors_allocator.c && ./allocator build/vectors/table-*.txt
 *
 * Built with -DBUG=n it has a known bug; docs/vectors.md says what the words mean. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef BUG
#define BUG 0
#endif
enum { MOST = 64 }; /* slots, pages, positions and entries of a batch: vectors are small */

typedef struct {
    int used[MOST], rows[MOST][MOST], row_len[MOST], counts[MOST], allocated[MOST], written[MOST];
    int tokens[MOST][MOST], known[MOST], request[MOST], choice[MOST]; /* request 0: no prompt */
} Table;

static Table table, want; /* what the allocator holds, and what the vector says it should */
static int pages, page_size, slots, max_len, widest, most_stops, longest_stop;
static int result[MOST], result_len;

/* The allocator: each action returns the reason of its refusal, or NULL. */

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
        if (table.used[s] && table.request[s] == request && table.choice[s] == choice) return true;
    return false;
}
static void answer(int value) { result[result_len++] = value; }

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
    if (table.request[slot]) return "SLOT_ASSIGNED";
    if (len + max_new > max_len) return "TOO_LONG";
    if (taken(request, choice)) return "CHOICE_TAKEN";
    memcpy(table.tokens[slot], prompt, sizeof(int) * len);
    table.known[slot] = len, table.request[slot] = request, table.choice[slot] = choice;
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
                                                        : write && !table.request[s]))
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
    if (!table.request[parent]) return "SLOT_EMPTY";
    if (BUG != 8 && taken(table.request[parent], choice)) return "CHOICE_TAKEN";
    if (BUG == 4) table.used[child] = 1; /* before the last thing that can be wrong */
    if (partial && BUG != 3 && !free_pages()) return "OUT_OF_PAGES";
    table.used[child] = 1, table.request[child] = table.request[parent], table.choice[child] = choice;
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
    table.used[slot] = table.row_len[slot] = table.known[slot] = table.request[slot] = 0;
    if (BUG != 6) table.allocated[slot] = table.written[slot] = 0;
    return NULL;
}

/* The reader: one line at a time, cut into words. */

static const char *word(void) { return strtok(NULL, " \n"); }
static int number(void) { /* -1 for a dash: nothing */
    const char *found = word();
    return found && strcmp(found, "-") ? atoi(found) : -1;
}
static int list(int *values) {
    int len = number();
    for (int i = 0; i < len; i++) values[i] = number();
    return len;
}
static const char *act(const char *name) {
    result_len = 0;
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
static void see(void) {
    const char *field = word();
    int at = number();
    if (!strcmp(field, "used")) want.used[at] = number();
    else if (!strcmp(field, "counts")) want.counts[at] = number();
    else if (!strcmp(field, "allocated")) want.allocated[at] = number();
    else if (!strcmp(field, "written")) want.written[at] = number();
    else if (!strcmp(field, "rows")) want.row_len[at] = list(want.rows[at]);
    else if (!strcmp(field, "tokens")) want.known[at] = list(want.tokens[at]);
}
static const char *difference(void) {
    for (int p = 0; p < pages; p++)
        if (table.counts[p] != want.counts[p]) return "counts";
    for (int s = 0; s < slots; s++) {
        if (table.used[s] != want.used[s]) return "used";
        if (table.allocated[s] != want.allocated[s]) return "allocated";
        if (table.written[s] != want.written[s]) return "written";
        if (table.row_len[s] != want.row_len[s]) return "rows";
        if (table.known[s] != want.known[s]) return "tokens";
        if (memcmp(table.rows[s], want.rows[s], sizeof(int) * want.row_len[s])) return "rows";
        if (memcmp(table.tokens[s], want.tokens[s], sizeof(int) * want.known[s])) return "tokens";
    }
    return NULL;
}

/* Whether a vector is passed; the first thing that is wrong with it is printed. */
static bool play(const char *path, FILE *file) {
    char line[1 << 12], action[MOST] = "";
    const char *why = NULL, *wrong = NULL;
    bool refused = false;
    memset(&table, 0, sizeof table), memset(&want, 0, sizeof want);
    for (int at = 1; !wrong && fgets(line, sizeof line, file); at++) {
        const char *kind = strtok(line, " \n"), *name;
        if (!strcmp(kind, "kvspec")) {
            if (strcmp(word(), "vectors") || number() != 1) wrong = "not a vector of version 1";
        } else if (!strcmp(kind, "geometry")) {
            pages = number(), page_size = number(), slots = number(), max_len = page_size * number();
        } else if (!strcmp(kind, "limits")) {
            number(), widest = number(), number(), number(), number();
            most_stops = number(), longest_stop = number();
        } else if (!strcmp(kind, "do")) {
            snprintf(action, sizeof action, "%s", word());
            why = act(action), refused = false;
        } else if (!strcmp(kind, "refused")) { /* by any of these reasons */
            for (refused = true, wrong = "the reason"; (name = word());)
                if (why && !strcmp(why, name)) wrong = NULL;
        } else if (!strcmp(kind, "result")) {
            for (int i = 0; !wrong && (name = word()); i++)
                if (i >= result_len || atoi(name) != result[i]) wrong = "the result";
        } else if (!strcmp(kind, "saw")) {
            see();
        } else { /* end of what is known of the action: nothing else may have changed */
            wrong = why && !refused ? "the refusal" : difference();
        }
        if (wrong)
            printf("%s:%d: %s: %s is wrong (%s)\n", path, at, action, wrong, why ? why : "done");
    }
    return !wrong;
}

int main(int argc, char **argv) {
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "r");
        if (!file) return perror(argv[i]), 2;
        failed += !play(argv[i], file);
        fclose(file);
    }
    printf("%d of %d vectors failed\n", failed, argc - 1);
    return failed || argc < 2;
}
