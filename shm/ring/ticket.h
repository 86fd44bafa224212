/*
 * ticket.h - the 64-bit word of a work item, the only truth about who owns it.
 *
 *      63    60 59          48 47           32 31                              0
 *     +--------+--------------+---------------+---------------------------------+
 *     | state  |    owner     |    attempt    |               lap               |
 *     +--------+--------------+---------------+---------------------------------+
 *
 * state    enum mr_state
 * owner    FILLING, READY, FAILED: the producer's slot; FAILED by the supervisor: MR_OWNER_SUPERVISOR. HELD, RELEASED:
 *          the consumer's owner index. Else 0
 * attempt  deaths of producers that had claimed this lap; stops at MR_ATTEMPT_MAX. MR_ATTEMPT_POISON: FAILED by the
 *          supervisor, and the HELD after it; such a word names no extent, whatever the descriptor still holds
 * lap      number div window, modulo 2^32: together with the slot it is the ticket's number
 *
 * Ticket n of a lane with window W lives at slot n mod W. Numbers are compared as signed distances (mr_ticket_number
 * gives 32 + log2 W bits), so they may wrap.
 *
 * Every change is one compare-and-swap that names the new owner; mr_lane_* in lane.h are the only callers.
 */
#ifndef MR_SHM_RING_TICKET_H
#define MR_SHM_RING_TICKET_H

#include <stdint.h>

enum mr_state { MR_EMPTY, MR_PENDING, MR_FILLING, MR_READY, MR_HELD, MR_RELEASED, MR_FAILED, MR_STATE_COUNT };

#define MR_OWNER_MAX        4095u
#define MR_OWNER_SUPERVISOR 4095u /* no producer slot or owner index is this high */
#define MR_ATTEMPT_MAX      65534u
#define MR_ATTEMPT_POISON   65535u

static inline uint64_t mr_word(enum mr_state state, unsigned owner, unsigned attempt, uint32_t lap)
{
    return (uint64_t)state << 60 | (uint64_t)(owner & MR_OWNER_MAX) << 48 | (uint64_t)(attempt & 65535u) << 32 | lap;
}

static inline enum mr_state mr_word_state(uint64_t word)
{
    return (enum mr_state)(word >> 60);
}

static inline unsigned mr_word_owner(uint64_t word)
{
    return (unsigned)(word >> 48) & MR_OWNER_MAX;
}

static inline unsigned mr_word_attempt(uint64_t word)
{
    return (unsigned)(word >> 32) & 65535u;
}

static inline uint32_t mr_word_lap(uint64_t word)
{
    return (uint32_t)word;
}

#endif
