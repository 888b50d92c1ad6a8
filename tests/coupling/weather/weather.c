/* Moist air between two walls, periodic along x: finite volumes of fourth order, three stages of Runge and Kutta.
 *
 * The equations and constants are those of the suite's miniWeather (density', density u, density w, (density theta)' of a
 * hydrostatic atmosphere); water is carried upwind. What a line adds for the coupling ends in "coupling": without these
 * lines, this is the program that was never coupled. Lines with "MPI" make it a rank of a job. It prints the relative
 * change of mass, and writes its state. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <mpi.h>                       /* MPI */
#define FAIRMILE_COUPLE_IMPLEMENTATION /* coupling */
#include "fairmile_couple.h"           /* coupling */

enum { NX = 40, NZ = 20 };
typedef double field[NZ][NX];

static const double C0 = 27.5629410929725921, GAMMA = 1.40027894, G = 9.8, CP = 1004, RD = 287, P0 = 1e5, THETA0 = 300;
static const double DX = 20000.0 / NX, DZ = 10000.0 / NZ, BETA = 0.05;
static double rest[NZ], rest_theta[NZ], face[NZ + 1], face_theta[NZ + 1];
static field state[4], stage[4], change[4], water[3], cells[5], after[4];

static double at_rest(double z) {
  return pow(P0 * pow(1 - G * z / (CP * THETA0), CP / RD) / C0, 1 / GAMMA);
}

static void begin(void) {
  int i, k;
  for (k = 0; k <= NZ; k++) {
    face_theta[k] = at_rest(k * DZ);
    face[k] = face_theta[k] / THETA0;
  }
  for (k = 0; k < NZ; k++) {
    rest_theta[k] = at_rest((k + 0.5) * DZ);
    rest[k] = rest_theta[k] / THETA0;
    for (i = 0; i < NX; i++) {
      double x = ((i + 0.5) * DX - 10000) / 2000, z = ((k + 0.5) * DZ - 2000) / 2000, far = sqrt(x * x + z * z);
      if (far < 1) state[3][k][i] = rest[k] * 3 * pow(cos(far * acos(-1.0) / 2), 2);
      water[0][k][i] = 0.014 * rest[k] * exp(-(k + 0.5) * DZ / 2500);
    }
  }
}

/* How the state changes by what flows along x (0) or z (1), and by gravity. */
static void flow(int along_z, double dt) {
  static double through[4][NZ + 1][NX + 1];
  double size = along_z ? DZ : DX, viscosity = BETA * size / (16 * dt);
  int i, k, s, v, rows = along_z ? NZ + 1 : NZ, columns = along_z ? NX : NX + 1;
  for (k = 0; k < rows; k++)
    for (i = 0; i < columns; i++) {
      double mean[4], bend[4], density, theta, speed;
      int is_wall = along_z && (k == 0 || k == NZ);
      for (v = 0; v < 4; v++) {
        double near[4];
        for (s = 0; s < 4; s++) {
          int row = along_z ? k - 2 + s : k, column = along_z ? i : (i - 2 + s + NX) % NX, inside = row;
          if (inside < 0) inside = 0;
          if (inside > NZ - 1) inside = NZ - 1;
          near[s] = v == 2 && inside != row ? 0 : stage[v][inside][column];
        }
        mean[v] = (7 * (near[1] + near[2]) - (near[0] + near[3])) / 12;
        bend[v] = viscosity * (near[3] - near[0] + 3 * (near[1] - near[2]));
      }
      if (is_wall) mean[2] = bend[0] = 0;
      density = mean[0] + (along_z ? face[k] : rest[k]);
      theta = mean[3] + (along_z ? face_theta[k] : rest_theta[k]);
      speed = mean[along_z ? 2 : 1] / density;
      through[0][k][i] = bend[0] + mean[along_z ? 2 : 1];
      through[1][k][i] = bend[1] + mean[1] * speed;
      through[2][k][i] = bend[2] + mean[2] * speed;
      through[3][k][i] = bend[3] + theta * speed;
      if (along_z) through[2][k][i] += C0 * (pow(theta, GAMMA) - pow(face_theta[k], GAMMA));
      if (!along_z) through[1][k][i] += C0 * pow(theta, GAMMA);
    }
  for (v = 0; v < 4; v++)
    for (k = 0; k < NZ; k++)
      for (i = 0; i < NX; i++) {
        change[v][k][i] = (through[v][k][i] - through[v][along_z ? k + 1 : k][along_z ? i : i + 1]) / size;
        if (along_z && v == 2) change[v][k][i] -= G * stage[0][k][i];
      }
}

static void move(int along_z, double dt) {
  int part, i, k, v;
  for (part = 3; part > 0; part--) {
    if (part == 3)
      for (v = 0; v < 4; v++)
        for (k = 0; k < NZ; k++)
          for (i = 0; i < NX; i++) stage[v][k][i] = state[v][k][i];
    flow(along_z, dt / part);
    for (v = 0; v < 4; v++)
      for (k = 0; k < NZ; k++)
        for (i = 0; i < NX; i++) stage[v][k][i] = state[v][k][i] + dt / part * change[v][k][i];
  }
  for (v = 0; v < 4; v++)
    for (k = 0; k < NZ; k++)
      for (i = 0; i < NX; i++) state[v][k][i] = stage[v][k][i];
}

/* Carry the water with the wind. */
static void carry(int along_z, double dt) {
  static double through[NZ + 1][NX + 1];
  int i, k, w, rows = along_z ? NZ + 1 : NZ, columns = along_z ? NX : NX + 1;
  for (w = 0; w < 3; w++) {
    for (k = 0; k < rows; k++)
      for (i = 0; i < columns; i++) {
        int before_k = along_z ? k - 1 : k, before_i = along_z ? i : (i - 1 + NX) % NX, v = along_z ? 2 : 1;
        double speed;
        through[k][i] = 0;
        if (along_z && (k == 0 || k == NZ)) continue;
        speed = (state[v][before_k][before_i] / (rest[before_k] + state[0][before_k][before_i]) +
                 state[v][k][i % NX] / (rest[k] + state[0][k][i % NX])) / 2;
        through[k][i] = speed * (speed > 0 ? water[w][before_k][before_i] : water[w][k][i % NX]);
      }
    for (k = 0; k < NZ; k++)
      for (i = 0; i < NX; i++)
        water[w][k][i] += dt / (along_z ? DZ : DX) *
                          (through[k][i] - through[along_z ? k + 1 : k][along_z ? i : i + 1]);
  }
}

/* Condense some of the vapour everywhere, which heats the air. */
static void physics(void) {
  int i, k;
  for (k = 0; k < NZ; k++)
    for (i = 0; i < NX; i++) {
      double condensed = 0.001 * cells[2][k][i];
      after[0][k][i] = cells[0][k][i] + 2500 * condensed;
      after[1][k][i] = cells[2][k][i] - condensed;
      after[2][k][i] = cells[3][k][i] + condensed;
      after[3][k][i] = cells[4][k][i];
    }
}

static void see(void) {
  int i, k, w;
  for (k = 0; k < NZ; k++)
    for (i = 0; i < NX; i++) {
      cells[1][k][i] = rest[k] + state[0][k][i];
      cells[0][k][i] = C0 * pow(rest_theta[k] + state[3][k][i], GAMMA) / (RD * cells[1][k][i]);
      for (w = 0; w < 3; w++) cells[2 + w][k][i] = water[w][k][i];
    }
}

static void heat(void) {
  int i, k, w;
  for (k = 0; k < NZ; k++)
    for (i = 0; i < NX; i++) {
      state[3][k][i] += (rest_theta[k] + state[3][k][i]) * (after[0][k][i] / cells[0][k][i] - 1);
      for (w = 0; w < 3; w++) water[w][k][i] = after[1 + w][k][i];
    }
}

static double mass(void) {
  double sum = 0;
  int i, k;
  for (k = 0; k < NZ; k++)
    for (i = 0; i < NX; i++) sum += rest[k] + state[0][k][i];
  return sum;
}

int main(int count, char **words) {
  double dt = 1.5 * (DX < DZ ? DX : DZ) / 450, before;
  int n, steps = atoi(words[1]);
  int64_t out[] = {5, NZ, NX}, in[] = {4, NZ, NX}; /* coupling */
  FILE *file = fopen(words[2], "wb");
  if (count < 3 || !file) return 2;
  MPI_Init(&count, &words); /* MPI */
  fairmile_couple_comm();   /* MPI coupling */
  begin();
  before = mass();
  fairmile_couple_out("cells", cells, FAIRMILE_DOUBLE, 3, out); /* coupling */
  fairmile_couple_in("after", after, FAIRMILE_DOUBLE, 3, in);   /* coupling */
  for (n = 0; n < steps; n++) {
    move(n % 2, dt);
    move(1 - n % 2, dt);
    carry(n % 2, dt);
    carry(1 - n % 2, dt);
    see();
    if (fairmile_couple_step() == FAIRMILE_PHYSICS) /* coupling */
      physics();
    heat();
  }
  fairmile_couple_end(); /* coupling */
  printf("%.3e\n", mass() / before - 1);
  fwrite(state, sizeof state, 1, file);
  fwrite(water, sizeof water, 1, file);
  MPI_Finalize(); /* MPI */
  return fclose(file);
}
