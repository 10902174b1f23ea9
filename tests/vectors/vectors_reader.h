/* A reader of kvspec's vectors for engines in C: the words, the comparison, and `main`.
 *
 * Include it, keep `table` as your engine has it, and write two functions. `act` takes the arguments
 * of an action by `number` and `list`, gives results to `answer`, and returns the reason of a
 * refusal or NULL. `restart` begins anew. docs/vectors.md says what the words mean. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 }; /* slots, pages, positions and entries of a batch: vectors are small */

typedef struct {
    int used[MOST], rows[MOST][MOST], row_len[MOST], counts[MOST], allocated[MOST], written[MOST];
    int tokens[MOST][MOST], known[MOST];
} Table;

static Table table, want; /* the fields of the engine, and those of the vector */
static int pages, page_size, slots, max_len, widest, most_stops, longest_stop;
static int result[MOST], result_len;

static const char *act(const char *name);
static void restart(void); /* a new engine of this geometry; `table` is empty already */
static void answer(int value) { result[result_len++] = value; }

/* One line at a time, cut into words. */

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

/* Whether the engine passes a vector. The first error is printed. */
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
            restart();
        } else if (!strcmp(kind, "do")) {
            snprintf(action, sizeof action, "%s", word());
            result_len = 0, why = act(action), refused = false;
        } else if (!strcmp(kind, "refused")) { /* for one of these reasons */
            for (refused = true, wrong = "the reason"; (name = word());)
                if (why && !strcmp(why, name)) wrong = NULL;
        } else if (!strcmp(kind, "result")) {
            for (int i = 0; !wrong && (name = word()); i++)
                if (i >= result_len || atoi(name) != result[i]) wrong = "the result";
        } else if (!strcmp(kind, "saw")) {
            see();
        } else { /* the end of an action: no other field may have changed */
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
